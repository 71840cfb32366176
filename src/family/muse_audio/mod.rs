//! Muse Spark, sound.
//!
//! Sound is heard as a waveform, without a spectrogram: decoded as libsndfile does, channels averaged, resampled as
//! torchaudio does by default, which is SGLang's way where FFmpeg is absent. A token is 80 ms; the last one is filled up
//! with silence.
//!
//! The checkpoint is the one that [`super::muse`] reads images for: the family must be named.

mod config;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::AudioConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Family, Grid, Input, Modality, Options, WeightNames};
use crate::checkpoint::Checkpoint;
use crate::{Error, Result};

/// Muse Spark's audio tower.
pub static ENTRY: Entry = Entry {
    name: "muse_audio",
    modality: Modality::Audio,
    model_types: &["muse_spark"],
    architectures: &["MuseSparkForConditionalGeneration"],
    model_ids: &["meta-models/muse-spark-"],
    choices: &[],
    open,
    demo: || Demo {
        files: vec![
            ("config.json", include_str!("../muse/demo/spark/config.json")),
            ("processor_config.json", include_str!("../muse/demo/spark/processor_config.json")),
        ],
        prefix: "model.audio_tower.",
    },
};

fn open(checkpoint: &Checkpoint, options: Options) -> Result<Box<dyn Family>> {
    if options.backend.is_some() {
        return Err(Error::argument("the family muse_audio has no option backend: leave it out"));
    }
    let audio = AudioConfig::read(checkpoint.config())?;
    let processor = Processor::read(checkpoint.feature_extractor()?, audio.token_samples())?;
    Ok(Box::new(MuseAudio { audio, processor }))
}

struct MuseAudio {
    audio: AudioConfig,
    processor: Processor,
}

impl Family for MuseAudio {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn input(&self) -> Input<'_> {
        Input::Audio(&self.processor)
    }

    fn input_columns(&self) -> usize {
        self.audio.token_samples()
    }

    fn embedding_columns(&self) -> usize {
        self.audio.out_hidden
    }

    fn tokens(&self, grid: Grid) -> Result<usize> {
        if grid.frames == 0 || (grid.height, grid.width) != (1, 1) {
            return Err(Error::argument(format!(
                "a grid of {}x{}x{}: a sound has at least one frame, of one row and column",
                grid.frames, grid.height, grid.width
            )));
        }
        Ok(grid.frames as usize)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        vec![WeightNames {
            prefixes: &["model.audio_tower."],
            specs: self.audio.tensors(),
            ignored: |_| false,
        }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.audio, loader)?))
    }
}
