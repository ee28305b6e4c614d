//! Configs as they are published.

mod decoders;
mod encoders;
