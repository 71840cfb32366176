//! What a caller may choose where a family leaves a choice.

use crate::pixels::PassOrder;
use crate::{Error, Result};

/// The preprocessing whose bits are reproduced, where the reference has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// transformers on torchvision's uint8 resampling: what `AutoImageProcessor` picks where torchvision is installed.
    Torchvision,
    /// transformers on Pillow, with the pass order of a Pillow version.
    Pillow(PassOrder),
}

impl Backend {
    /// Every backend and its name; "pillow" is the newest rule.
    const NAMES: [(Self, &'static str); 4] = [
        (Self::Torchvision, "torchvision"),
        (Self::Pillow(PassOrder::Pillow13), "pillow"),
        (Self::Pillow(PassOrder::Pillow12_2), "pillow-12.2"),
        (Self::Pillow(PassOrder::HorizontalFirst), "pillow-12.1"),
    ];

    /// Parses "torchvision", "pillow" (the newest rule), "pillow-12.2" or "pillow-12.1".
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(backend, _)| backend).ok_or_else(|| {
            Error::argument(format!(
                "backend {name:?} is unknown: use torchvision, pillow, pillow-12.2 or pillow-12.1"
            ))
        })
    }

    /// What [`Backend::parse`] reads.
    pub fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(backend, _)| *backend == self).map_or("", |(_, name)| name)
    }
}

/// How a tower with deepstack hands over the tokens of its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deepstack {
    /// A tensor of its own, "deepstack" [levels, rows, columns]: transformers' form.
    #[default]
    Separate,
    /// Further columns of the embeddings, main columns first, then level by level: SGLang's form.
    Concatenated,
}

impl Deepstack {
    /// Parses "separate" or "concatenated".
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "separate" => Ok(Self::Separate),
            "concatenated" => Ok(Self::Concatenated),
            other => {
                Err(Error::argument(format!("deepstack {other:?} is unknown: use separate or concatenated")))
            }
        }
    }
}

/// Where the products and the softmax of attention round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Torch's fused kernel.
    #[default]
    Fused,
    /// All in float32, rounded once: what Torch up to 2.13 does with tensors of three dimensions, which is how
    /// DeepSeek calls it.
    Math,
}

impl Attention {
    /// Parses "fused" or "math".
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "fused" => Ok(Self::Fused),
            "math" => Ok(Self::Math),
            other => Err(Error::argument(format!("attention {other:?} is unknown: use fused or math"))),
        }
    }

    /// What [`Attention::parse`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::Math => "math",
        }
    }
}

/// Choices that a caller makes for a family; the defaults are those of its reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Preprocessing arithmetic; none: the family's reference.
    pub backend: Option<Backend>,
    /// The form of deepstack's levels; none: [`Deepstack::Separate`].
    pub deepstack: Option<Deepstack>,
    /// Rounding of the tower's attention; none: [`Attention::Fused`].
    pub attention: Option<Attention>,
    /// Factor by which images are scaled ahead of all else; none: as the checkpoint says.
    pub rescale: Option<f64>,
}

/// An option that some families have. A backend can be asked of every family, which says which it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// [`Options::deepstack`].
    Deepstack,
    /// [`Options::attention`].
    Attention,
    /// [`Options::rescale`].
    Rescale,
}

impl Options {
    /// A text that is equal for equal choices and stays so between releases, for the identity of results.
    pub fn identity(&self) -> String {
        let backend = self.backend.map_or("default", Backend::name);
        let deepstack = match self.deepstack.unwrap_or_default() {
            Deepstack::Separate => "separate",
            Deepstack::Concatenated => "concatenated",
        };
        let attention = self.attention.unwrap_or_default().name();
        let rescale = self.rescale.map_or("default".to_owned(), |factor| format!("{factor:?}"));
        format!("options2;backend={backend};deepstack={deepstack};attention={attention};rescale={rescale}")
    }

    /// An error if a choice was made that the family `name`, which has `choices`, does not have.
    pub fn check(&self, name: &str, choices: &[Choice]) -> Result<()> {
        let made = [
            (self.deepstack.is_some(), Choice::Deepstack, "deepstack"),
            (self.attention.is_some(), Choice::Attention, "attention"),
            (self.rescale.is_some(), Choice::Rescale, "rescale"),
        ];
        match made.iter().find(|(made, choice, _)| *made && !choices.contains(choice)) {
            None => Ok(()),
            Some((_, _, option)) => {
                Err(Error::argument(format!("the family {name} has no option {option}: leave it out")))
            }
        }
    }
}
