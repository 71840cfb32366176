//! One media item from its bytes to a tower's input: decode, plan, pixels.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::checkpoint::Checkpoint;
use crate::family::{self, Family, Grid, Options, Plan};
use crate::image::{self, DecodePolicy, Limits};
use crate::media::hash::content_hash;
use crate::pixels::PixelValues;
use crate::{Dtype, Error, Result};

/// A family's preprocessing with the choices of one caller. Needs no Torch.
#[derive(Clone)]
pub struct Preprocessor {
    family: Arc<dyn Family>,
    model: String,
    options: Options,
    policy: DecodePolicy,
    limits: Limits,
}

/// An item ready for the tower.
pub struct Prepared {
    /// The patch matrix.
    pub pixels: PixelValues,
    /// Time to decode.
    pub decode: Duration,
    /// Time to resize, normalise and lay out.
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
        let policy = family.decode_policy();
        Ok((
            Self { family: family.into(), model: model.into(), options, policy, limits: Limits::default() },
            checkpoint,
        ))
    }

    /// The same with another decode policy.
    pub fn with_policy(self, policy: DecodePolicy) -> Self {
        Self { policy, ..self }
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

    /// What the decoder does where engines disagree.
    pub fn policy(&self) -> &DecodePolicy {
        &self.policy
    }

    /// Grid and tokens of encoded `bytes`, from the header alone.
    pub fn plan(&self, bytes: &[u8]) -> Result<Plan> {
        let header = image::header(bytes, &self.policy, &self.limits)?;
        self.family.plan(header.width, header.height)
    }

    /// [`Preprocessor::plan`], refused where it gives other than `expected` tokens.
    pub fn plan_expecting(&self, bytes: &[u8], expected: Option<usize>) -> Result<Plan> {
        let plan = self.plan(bytes)?;
        check_tokens(expected, plan.tokens, plan.grid)?;
        Ok(plan)
    }

    /// Decodes and prepares `bytes`.
    pub fn prepare(&self, bytes: &[u8], dtype: Dtype) -> Result<Prepared> {
        let start = Instant::now();
        let image = image::decode(bytes, &self.policy, &self.limits)?;
        let decoded = Instant::now();
        let pixels = self.family.preprocess(&image, dtype)?;
        Ok(Prepared { pixels, decode: decoded - start, resize: decoded.elapsed() })
    }

    /// BLAKE3 of the source bytes' own BLAKE3 and of everything that changes what comes of them: 64 hexadecimal digits.
    ///
    /// The bytes are hashed by themselves: behind a prefix their blocks would not lie where wide registers take them.
    pub fn hash(&self, bytes: &[u8]) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("mm-libtorch-encoder media 2");
        let (options, policy) = (self.options.identity(), self.policy.identity());
        for part in [&self.model, self.family.name(), "image", &options, &policy] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(&content_hash(bytes));
        hasher.finalize().to_hex().to_string()
    }
}

/// Refuses an image that gives other than `expected` tokens.
pub(crate) fn check_tokens(expected: Option<usize>, tokens: usize, grid: Grid) -> Result<()> {
    match expected {
        Some(expected) if expected != tokens => Err(Error::media(format!(
            "{expected} tokens were expected, but this image gives {tokens} (grid {}x{})",
            grid.height, grid.width
        ))),
        _ => Ok(()),
    }
}
