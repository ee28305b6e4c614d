//! Messages of the crates below `sinew-ops`.
//!
//! These crates take most of the compile time, and log crates change their features with the application: an HTTP server
//! enables `tracing/log`, and everything that depends on `tracing` is then compiled again. So messages go to a function
//! that `sinew-ops` installs, which hands them to `tracing`.

use std::fmt;
use std::sync::OnceLock;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Interesting to somebody who looks for the cause of something.
    Debug,
    /// Works, but not as it should.
    Warning,
    /// A fault in the program.
    Error,
}

/// A function that receives messages.
pub type Listener = fn(Severity, fmt::Arguments<'_>);

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// Installs the function that receives all messages of the process. The first call decides; later ones change nothing.
///
/// ```
/// sinew_memory::messages::listen(|severity, text| eprintln!("{severity:?}: {text}"));
/// ```
pub fn listen(listener: Listener) {
    LISTENER.get_or_init(|| listener);
}

/// Sends a message to the listener. Without a listener it is dropped.
pub fn send(severity: Severity, text: fmt::Arguments<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(severity, text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn listener_receives_messages() {
        static RECEIVED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        listen(|severity, text| RECEIVED.lock().unwrap().push(format!("{severity:?} {text}")));
        send(Severity::Warning, format_args!("{} of {}", 1, 2));
        assert!(RECEIVED.lock().unwrap().contains(&"Warning 1 of 2".to_owned()));
    }
}
