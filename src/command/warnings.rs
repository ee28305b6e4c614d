//! What the crates warn of, on standard error.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

use sinew::models::shortened;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

/// From now on warnings are a line each, like errors, and each is there once: of a model that is loaded several times, too.
pub fn show() {
    // It fails where there is a subscriber already, which then shows them.
    let _ = tracing::subscriber::set_global_default(Warnings::default());
}

#[derive(Default)]
struct Warnings {
    said: Mutex<BTreeSet<String>>,
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::WARN && metadata.is_event()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = shortened(&format!("warning: {}{}", line.message, line.fields));
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            super::complain(&line);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        // None is enabled.
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A message, and its fields as `, name value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name} {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
