//! Blank images through every replica, so that the first request does not pay for first touches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Encoder;
use super::admission::Cost;
use super::item::{Item, Times, Work};
use super::ticket::Ticket;
use crate::family::Input;
use crate::image::{Image, Mode};
use crate::{Error, Result};

/// Most sizes of one call.
const MAX_SIZES: usize = 256;
/// Level of the blank images.
const GREY: u8 = 128;

impl Encoder {
    /// Prepares a blank image of each (width, height) and runs it on every replica.
    ///
    /// `go_on` is asked every `period`; its error ends the wait, not what runs already.
    pub fn warm_up(
        &self,
        sizes: &[(u32, u32)],
        period: Duration,
        mut go_on: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.check_open()?;
        if sizes.len() > MAX_SIZES {
            return Err(Error::argument(format!("{} sizes: give at most {MAX_SIZES}", sizes.len())));
        }
        for &(width, height) in sizes {
            let family = self.preprocessor.family();
            let Input::Image(processor) = family.input() else {
                return Err(Error::argument(format!(
                    "warmup takes sizes of images, and the family {} reads sound: encode a sound of the usual length instead",
                    family.name()
                )));
            };
            let image = self.blank(width, height)?;
            let grid = processor.plan(width, height)?.grid;
            let tokens = family.tokens(grid)?;
            let expansion = self.inputs.expansion(self.inputs.form());
            let pixels = Arc::new(processor.patches(&image, self.dtype, expansion)?);
            let mut tickets = Vec::new();
            for replica in 0..self.queue.load().replicas {
                let (ticket, reply) = Ticket::new(self.queue.clone(), None);
                let item = Item {
                    work: Work::Pixels(pixels.clone()),
                    grids: vec![grid],
                    offsets: vec![0, tokens],
                    hash: None,
                    cost: Cost::default(),
                    times: Times::default(),
                    since: Instant::now(),
                    reply,
                    warmup: true,
                };
                if !self.queue.push_to(replica, item) {
                    return Err(Error::closed("this encoder is closed"));
                }
                tickets.push(ticket);
            }
            for ticket in tickets {
                loop {
                    if let Some(outcome) = ticket.wait(period) {
                        outcome?;
                        break;
                    }
                    go_on()?;
                }
            }
        }
        Ok(())
    }

    /// A grey image, within the limits of any image.
    fn blank(&self, width: u32, height: u32) -> Result<Image> {
        let pixels = u64::from(width) * u64::from(height);
        let most = self.preprocessor.limits().pixels;
        if pixels == 0 || pixels > most {
            return Err(Error::argument(format!(
                "a size of {width}x{height}: it must have from 1 to {most} pixels"
            )));
        }
        let bytes = pixels as usize * 3;
        let mut samples = Vec::new();
        samples
            .try_reserve_exact(bytes)
            .map_err(|_| Error::out_of_memory(format!("no memory for an image of {width}x{height}")))?;
        samples.resize(bytes, GREY);
        Ok(Image { width, height, channels: 3, mode: Mode::Plain, samples })
    }
}
