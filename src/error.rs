//! The one error type. It becomes a Python exception in `python/errors.rs`.

use std::fmt;

/// What went wrong, for the caller's decision: whose fault it is and whether another try can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The media item is damaged, unsupported or over a limit. Only this item fails.
    Media,
    /// The checkpoint's files are missing, contradictory or not supported.
    Checkpoint,
    /// An argument of the caller is out of range or of the wrong form.
    Argument,
    /// The host's Torch, driver or library does not fit the build.
    Runtime,
    /// The encoder was closed, or belongs to the parent of this forked process.
    Closed,
    /// The queue stayed full for as long as the caller would wait; the request was not begun.
    QueueFull,
    /// The device or the host ran out of memory; the next request may succeed.
    OutOfMemory,
    /// A fault of this library.
    Internal,
}

/// An error with a sentence that says what, where, which limit, and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// Longest message in bytes: what a caller or a file put into it must not fill logs and replies.
const MESSAGE_BYTES: usize = 4 << 10;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {$(
        #[doc = concat!("An error of kind [`ErrorKind::", stringify!($kind), "`].")]
        pub fn $name(message: impl Into<String>) -> Self {
            Self { kind: ErrorKind::$kind, message: clipped(message.into()) }
        }
    )*};
}

impl Error {
    constructors! {
        media => Media, checkpoint => Checkpoint, argument => Argument, runtime => Runtime,
        closed => Closed, queue_full => QueueFull, out_of_memory => OutOfMemory, internal => Internal,
    }

    /// The kind, for mapping to exceptions and status codes.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `place` in front, as in `"image 3: ..."`.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// `message`, cut to [`MESSAGE_BYTES`] between two characters.
fn clipped(mut message: String) -> String {
    const MARK: &str = " ... (cut)";
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES - MARK.len()));
        message.push_str(MARK);
    }
    message
}
