//! Names of filters, arithmetic and layouts, as configuration and Python spell them.

use super::{Arithmetic, Filter, PassOrder, SampleOrder};
use crate::{Error, Result};

fn find<T: Copy>(what: &str, name: &str, choices: &[(&str, T)]) -> Result<T> {
    choices.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let known = choices.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
        Error::argument(format!("{what} {name:?} is not known: use one of {known}"))
    })
}

const FILTERS: [(&str, Filter); 6] = [
    ("nearest", Filter::Nearest),
    ("box", Filter::Box),
    ("bilinear", Filter::Bilinear),
    ("hamming", Filter::Hamming),
    ("bicubic", Filter::Bicubic),
    ("lanczos", Filter::Lanczos),
];

impl Filter {
    /// Parses a lower-case name.
    pub fn parse(name: &str) -> Result<Self> {
        find("filter", name, &FILTERS)
    }

    /// The lower-case name.
    pub fn name(self) -> &'static str {
        FILTERS.iter().find(|(_, filter)| *filter == self).map_or("", |(name, _)| name)
    }
}

impl Arithmetic {
    /// Parses a name; "pillow" alone follows the newest Pillow that is known.
    pub fn parse(name: &str) -> Result<Self> {
        find(
            "arithmetic",
            name,
            &[
                ("pillow", Self::Pillow(PassOrder::Pillow13)),
                ("pillow-13.0", Self::Pillow(PassOrder::Pillow13)),
                ("pillow-12.2", Self::Pillow(PassOrder::Pillow12_2)),
                ("pillow-12.1", Self::Pillow(PassOrder::HorizontalFirst)),
                ("torchvision", Self::TorchvisionU8),
                ("aten-float32", Self::AtenF32),
            ],
        )
    }
}

impl SampleOrder {
    /// Parses a name.
    pub fn parse(name: &str) -> Result<Self> {
        find(
            "sample order",
            name,
            &[
                ("channel-frame", Self::ChannelFrame),
                ("frame-channel", Self::FrameChannel),
                ("channels-last", Self::ChannelsLast),
            ],
        )
    }
}
