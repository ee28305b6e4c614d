//! Why a template gives no text.

use crate::error::cut_to;

/// An error of a template, with the line that it comes from once that is known.
#[derive(Debug, Clone)]
pub(super) struct Error {
    message: String,
    line: Option<u32>,
}

/// The result of everything that a template can make fail.
pub(super) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), line: None }
    }

    /// Adds the line, unless a deeper part of the template has set its own.
    pub(super) fn at(mut self, line: u32) -> Self {
        self.line.get_or_insert(line);
        self
    }

    /// The message in one line of bounded length.
    pub(super) fn one_line(&self) -> String {
        const MAX_CHARS: usize = 200;
        let text = cut_to(&self.message, MAX_CHARS).replace(char::is_control, " ");
        match self.line {
            Some(line) => format!("{text} (line {line})"),
            None => text,
        }
    }
}

/// Fails with a message: `fail!("{name} is not iterable")`.
macro_rules! fail {
    ($($arg:tt)*) => {
        return Err(super::error::Error::new(format!($($arg)*)))
    };
}
pub(super) use fail;
