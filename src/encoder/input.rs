//! The tower's input: in which form an item holds it until its forward, and the tensor that is made of it then.

use std::borrow::Cow;

use crate::family::Input;
use crate::pixels::{Expansion, Levels, Patches, PixelValues, Samples};
use crate::prepare::Preprocessor;
use crate::torch::{Device, Expander, Tensor};
use crate::{Dtype, Error, Result};

/// What an item becomes on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The patch matrix, in the tower's dtype.
    Values,
    /// 8-bit levels, one copy of each patch; the device makes the matrix.
    Levels,
}

/// How one encoder's items reach its tower.
pub(super) struct Inputs {
    dtype: Dtype,
    device: Device,
    /// None: items are values.
    expander: Option<Expander>,
}

impl Inputs {
    /// On the calling thread's stream. Levels are for images on a GPU whose values are a function of them.
    pub fn open(preprocessor: &Preprocessor, dtype: Dtype, device: Device) -> Result<Self> {
        let expansion = match (preprocessor.family().input(), device) {
            (Input::Image(processor), Device::Cuda(_)) => processor.expansion(dtype),
            _ => None,
        };
        let expander = expansion.map(|expansion| Expander::new(expansion, device)).transpose()?;
        Ok(Self { dtype, device, expander })
    }

    /// The form of an item that comes now.
    pub fn form(&self) -> Form {
        match &self.expander {
            Some(expander) if expander.in_use() => Form::Levels,
            _ => Form::Values,
        }
    }

    /// For items of this form: how their levels become values.
    pub fn expansion(&self, form: Form) -> Option<&Expansion> {
        self.expander.as_ref().filter(|_| form == Form::Levels).map(Expander::expansion)
    }

    /// Bytes of an item of `patches` patches and `columns` columns.
    pub fn bytes(&self, form: Form, patches: usize, columns: usize) -> usize {
        let values = || patches.saturating_mul(columns).saturating_mul(self.dtype.size());
        self.expansion(form).map_or_else(values, |expansion| expansion.bytes(patches))
    }

    /// Runs `body` with the tower's input of all `parts`, one under the other.
    pub fn with<R>(&self, parts: &[&Patches], body: impl FnOnce(&Tensor) -> Result<R>) -> Result<R> {
        let levels: Vec<&Levels> = parts.iter().filter_map(|part| part.levels()).collect();
        if let Some(expander) = self.expander.as_ref().filter(|_| levels.len() == parts.len()) {
            return body(&expander.expand(&levels)?);
        }
        // Matrices that callers prepared may be among levels.
        let values = parts.iter().map(|part| self.values(part)).collect::<Result<Vec<_>>>()?;
        if let [values] = &values[..] {
            let shape = [values.rows, values.columns];
            return match &values.samples {
                Samples::F32(samples) => Tensor::with_input(samples, &shape, self.device, body),
                Samples::Bf16(samples) => Tensor::with_input(samples, &shape, self.device, body),
                Samples::F16(samples) => Tensor::with_input(samples, &shape, self.device, body),
            };
        }
        let values: Vec<&PixelValues> = values.iter().map(|values| &**values).collect();
        body(&Tensor::from_values(&values, self.device)?)
    }

    fn values<'a>(&self, part: &'a Patches) -> Result<Cow<'a, PixelValues>> {
        match (part, &self.expander) {
            (Patches::Values(values), _) => Ok(Cow::Borrowed(values)),
            (Patches::Levels(levels), Some(expander)) => {
                Ok(Cow::Owned(expander.expansion().expand(&[levels])?))
            }
            (Patches::Levels(_), None) => {
                Err(Error::internal("an item of levels, which this encoder has not"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::family::{Options, REGISTRY, make_checkpoint};
    use crate::image::{Image, Mode};
    use crate::torch;

    fn preprocessor(family: &str) -> Preprocessor {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("checkpoint");
        make_checkpoint(family, &root, 0, &[]).unwrap();
        Preprocessor::open(&root, "", Some(family), Options::default()).unwrap().0
    }

    fn noise(width: u32, height: u32) -> Image {
        let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let states = std::iter::successors(Some(width), step).take((width * height * 3) as usize);
        let samples = states.map(|state| (state >> 24) as u8).collect();
        Image { width, height, channels: 3, mode: Mode::Plain, samples }
    }

    #[test]
    fn levels_and_values_make_the_same_matrix() {
        torch::open(OsStr::new(env!("MM_TORCH_BRIDGE"))).unwrap();
        for entry in REGISTRY {
            let preprocessor = preprocessor(entry.name);
            let Input::Image(processor) = preprocessor.family().input() else { continue };
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                // Levels are for values that are a function of them.
                let Some(expansion) = processor.expansion(dtype) else {
                    assert_eq!(entry.name, "nemotron35");
                    continue;
                };
                assert_ne!(entry.name, "nemotron35");
                let device = Device::Cpu;
                let expander = Some(Expander::new(expansion.clone(), device).unwrap());
                let inputs = Inputs { dtype, device, expander };
                let [levels, values] = [Some(&expansion), None].map(|expansion| {
                    let images = [noise(100, 61), noise(33, 70)];
                    images.map(|image| processor.patches(&image, dtype, expansion).unwrap())
                });
                let matrix = |parts: &[&Patches]| {
                    inputs.with(parts, |x| Ok((x.shape()?, x.dtype()?, x.host_bytes()?.to_vec()))).unwrap()
                };
                let wanted = matrix(&[&values[0], &values[1]]);
                assert_eq!((wanted.1, wanted.0[1]), (dtype, preprocessor.family().input_columns()));
                for parts in [[&levels[0], &levels[1]], [&levels[0], &values[1]], [&values[0], &levels[1]]] {
                    assert!(matrix(&parts) == wanted, "{} {dtype:?}", entry.name);
                }
                assert!(matrix(&[&levels[1]]) == matrix(&[&values[1]]));
                let held = levels[0].levels().unwrap();
                let (rows, columns) = (held.rows(), wanted.0[1]);
                assert_eq!(inputs.bytes(Form::Levels, rows, columns), held.bytes());
                assert_eq!(inputs.bytes(Form::Values, rows, columns), rows * columns * dtype.size());
            }
        }
    }

    #[test]
    fn without_the_kernel_items_are_values() {
        let preprocessor = preprocessor("qwen35");
        let inputs = Inputs::open(&preprocessor, Dtype::F32, Device::Cpu).unwrap();
        assert_eq!(inputs.form(), Form::Values);
        assert!(inputs.expansion(Form::Values).is_none() && inputs.expansion(Form::Levels).is_none());
    }
}
