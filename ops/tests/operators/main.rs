//! The public operators against plain loops in f64, on operands of every kind of layout.

// Tables of functions beside their definitions.
#![allow(clippy::type_complexity)]

mod activation;
mod attention;
mod copy;
mod elementwise;
mod errors;
mod index;
mod lay;
mod layers;
mod matmul;
mod mixture;
mod norm;
mod reduce;
mod rotary;
mod softmax;
mod unwritten;
