//! One media item from its bytes to a tower's input: decode, plan, pixels.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::audio;
use crate::checkpoint::Checkpoint;
use crate::family::{self, AudioProcessor, Family, Grid, ImageProcessor, Input, Options};
use crate::image::{self, DecodePolicy, Image, Limits};
use crate::media::hash::content_hash;
use crate::pixels::{Expansion, Patches, PixelValues};
use crate::{Dtype, Error, Result};

/// A family's preprocessing with the choices of one caller. Needs no Torch.
#[derive(Clone)]
pub struct Preprocessor {
    family: Arc<dyn Family>,
    model: String,
    options: Options,
    /// What is asked for instead of the family's own policy.
    policy: Option<DecodePolicy>,
    limits: Limits,
}

/// What becomes of an item, known from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Patches.
    pub grid: Grid,
    /// Rows of the embeddings.
    pub tokens: usize,
}

/// An item ready for the tower.
pub struct Prepared<P = PixelValues> {
    /// The tower's input matrix, or what it is made of.
    pub pixels: P,
    /// Time to decode.
    pub decode: Duration,
    /// Time to resize or resample, normalise and lay out.
    pub resize: Duration,
}

impl Preprocessor {
    /// Opens the checkpoint folder `root` for the model `model`; also gives the checkpoint, for its weights.
    pub fn open(
        root: &Path,
        model: &str,
        family: Option<&str>,
        options: Options,
    ) -> Result<(Self, Checkpoint)> {
        let (checkpoint, family) = family::open(root, model, family, options)?;
        let family = family.into();
        Ok((
            Self { family, model: model.into(), options, policy: None, limits: Limits::default() },
            checkpoint,
        ))
    }

    /// The same with another decode policy.
    ///
    /// # Errors
    /// `Argument` if the family does not read images.
    pub fn with_policy(self, policy: DecodePolicy) -> Result<Self> {
        self.image_processor()?;
        Ok(Self { policy: Some(policy), ..self })
    }

    /// The same with other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The family.
    pub fn family(&self) -> &dyn Family {
        &*self.family
    }

    /// The model name that results carry.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The bounds on one item.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What `processor`'s decoder does where engines disagree.
    pub fn policy(&self, processor: &dyn ImageProcessor) -> DecodePolicy {
        self.policy.unwrap_or_else(|| processor.decode_policy())
    }

    /// The preprocessing of a family that reads images.
    ///
    /// # Errors
    /// `Argument` if it does not.
    pub fn image_processor(&self) -> Result<&dyn ImageProcessor> {
        match self.family.input() {
            Input::Image(processor) => Ok(processor),
            Input::Audio(_) => Err(Error::argument(format!(
                "the family {} reads sound: it has nothing to do with images",
                self.family.name()
            ))),
        }
    }

    /// The preprocessing of a family that reads sound.
    ///
    /// # Errors
    /// `Argument` if it does not.
    pub fn audio_processor(&self) -> Result<&dyn AudioProcessor> {
        match self.family.input() {
            Input::Audio(processor) => Ok(processor),
            Input::Image(_) => Err(Error::argument(format!(
                "the family {} reads images: it has nothing to do with sound",
                self.family.name()
            ))),
        }
    }

    /// Refuses sound where images are read, and images where sound is.
    fn check_kind(&self, bytes: &[u8]) -> Result<()> {
        let (image, sound) = (image::format_name(bytes), audio::format_name(bytes));
        let (name, reads, is) = match (self.family.input(), image, sound) {
            (Input::Image(_), None, Some(name)) => (name, "images", "sound"),
            (Input::Audio(_), Some(name), None) => (name, "sound", "an image"),
            _ => return Ok(()),
        };
        let family = self.family.name();
        Err(Error::media(format!(
            "unsupported format: {name}; the family {family} reads {reads}, and this is {is}"
        )))
    }

    /// Grid and tokens of encoded `bytes`, from the header alone.
    pub fn plan(&self, bytes: &[u8]) -> Result<Extent> {
        self.check_kind(bytes)?;
        match self.family.input() {
            Input::Image(processor) => {
                let header = image::header(bytes, &self.policy(processor), &self.limits)?;
                let plan = processor.plan(header.width, header.height)?;
                Ok(Extent { grid: plan.grid, tokens: plan.tokens })
            }
            Input::Audio(processor) => {
                let header = audio::header(bytes)?;
                let samples = audio::resampled_length(header.frames, header.rate, processor.sample_rate());
                let grid = processor.plan(samples)?;
                Ok(Extent { grid, tokens: self.family.tokens(grid)? })
            }
        }
    }

    /// [`Preprocessor::plan`], refused where it gives other than `expected` tokens.
    pub fn plan_expecting(&self, bytes: &[u8], expected: Option<usize>) -> Result<Extent> {
        let extent = self.plan(bytes)?;
        self.check_tokens(expected, extent.tokens, extent.grid)?;
        Ok(extent)
    }

    /// Refuses an item of `tokens`, on `grid` if it is an image, where others are `expected`.
    pub(crate) fn check_tokens(&self, expected: Option<usize>, tokens: usize, grid: Grid) -> Result<()> {
        let Some(expected) = expected.filter(|&expected| expected != tokens) else { return Ok(()) };
        let gives = match self.family.input() {
            Input::Image(_) => format!("image gives {tokens} (grid {}x{})", grid.height, grid.width),
            Input::Audio(_) => format!("sound gives {tokens}"),
        };
        Err(Error::media(format!("{expected} tokens were expected, but this {gives}")))
    }

    /// A text that is equal for equal decode policies; sound has none.
    pub(crate) fn policy_identity(&self) -> String {
        match self.family.input() {
            Input::Image(processor) => self.policy(processor).identity(),
            Input::Audio(_) => String::new(),
        }
    }

    /// Decodes and prepares `bytes`.
    pub fn prepare(&self, bytes: &[u8], dtype: Dtype) -> Result<Prepared> {
        self.decode(bytes, dtype, |processor, image| processor.preprocess(image, dtype))
    }

    /// [`Preprocessor::prepare`] as far as to levels, where there is an `expansion` and the image has it.
    pub fn prepare_patches(
        &self,
        bytes: &[u8],
        dtype: Dtype,
        expansion: Option<&Expansion>,
    ) -> Result<Prepared<Patches>> {
        self.decode(bytes, dtype, |processor, image| processor.patches(image, dtype, expansion))
    }

    fn decode<P: From<PixelValues>>(
        &self,
        bytes: &[u8],
        dtype: Dtype,
        prepare: impl FnOnce(&dyn ImageProcessor, &Image) -> Result<P>,
    ) -> Result<Prepared<P>> {
        let start = Instant::now();
        let (decoded, pixels) = match self.family.input() {
            Input::Image(processor) => {
                let image = image::decode(bytes, &self.policy(processor), &self.limits)?;
                (Instant::now(), prepare(processor, &image)?)
            }
            Input::Audio(processor) => {
                let sound = audio::decode(bytes)?;
                (Instant::now(), processor.preprocess(sound, dtype)?.into())
            }
        };
        Ok(Prepared { pixels, decode: decoded - start, resize: decoded.elapsed() })
    }

    /// BLAKE3 of the source bytes' own BLAKE3 and of everything that changes what comes of them: 64 hexadecimal digits.
    ///
    /// The bytes are hashed by themselves: behind a prefix their blocks would not lie where wide registers take them.
    pub fn hash(&self, bytes: &[u8]) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("mm-libtorch-encoder media 2");
        let input = self.family.input();
        let policy = self.policy_identity();
        let options = self.options.identity();
        for part in [&self.model, self.family.name(), input.modality().name(), &options, &policy] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(&content_hash(bytes));
        hasher.finalize().to_hex().to_string()
    }
}
