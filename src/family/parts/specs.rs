//! The list of tensors that a tower wants, written layer by layer.

use crate::checkpoint::TensorSpec;

/// Tensor names and shapes, collected.
#[derive(Debug, Default)]
pub struct Specs(Vec<TensorSpec>);

impl Specs {
    /// The tensor `name` of dimensions `shape`.
    pub fn tensor(&mut self, name: impl Into<String>, shape: impl Into<Vec<usize>>) {
        self.0.push(TensorSpec::new(name, shape));
    }

    /// `{name}.weight` [out, input], and `{name}.bias` [out] if `bias`.
    pub fn linear(&mut self, name: &str, out: usize, input: usize, bias: bool) {
        self.weight(name, vec![out, input], bias);
    }

    /// `{name}.weight` [width] and `{name}.bias` [width].
    pub fn layer_norm(&mut self, name: &str, width: usize) {
        self.weight(name, vec![width], true);
    }

    /// `{name}.weight` [width].
    pub fn rms_norm(&mut self, name: &str, width: usize) {
        self.weight(name, vec![width], false);
    }

    /// `{name}.weight` of dimensions `shape`, and `{name}.bias` of its first if `bias`.
    pub fn weight(&mut self, name: &str, shape: Vec<usize>, bias: bool) {
        let out = shape.first().copied().unwrap_or(1);
        self.tensor(format!("{name}.weight"), shape);
        if bias {
            self.tensor(format!("{name}.bias"), [out]);
        }
    }

    /// All of them.
    pub fn into_vec(self) -> Vec<TensorSpec> {
        self.0
    }
}
