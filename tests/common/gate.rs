//! A model that fails or waits where a test says so: its embedding is a row of a registry of the test's own.
#![allow(dead_code, reason = "not every file of tests needs all of it")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sinew::kernels::embedding::{Embedding, EmbeddingDynamic, EmbeddingStatic};
use sinew::kernels::{Error, Launch, Operands, Refusal, Registry, Result, Row};
use sinew::memory::{DeviceKind, Hardware, Stream};
use sinew::ops::Policy;
use sinew::prelude::Context;

/// The name of the row.
pub const ROW: &str = "embedding.test.gate";

/// What is asked when a step begins, which it may keep waiting: whether the step is to fail.
pub type Gate = Arc<dyn Fn() -> bool + Send + Sync>;

/// Gates by the stream of their models: rows are functions, which hold nothing.
static GATES: Mutex<Option<HashMap<usize, Gate>>> = Mutex::new(None);

fn key(stream: &Arc<dyn Stream>) -> usize {
    Arc::as_ptr(stream).cast::<()>() as usize
}

/// The row of the same problem that would be chosen otherwise.
fn usual(fixed: &EmbeddingStatic, hardware: &Hardware) -> Option<&'static Row<Embedding>> {
    static ROWS: OnceLock<Vec<Row<Embedding>>> = OnceLock::new();
    let rows = ROWS.get_or_init(sinew::kernels::embedding::rows);
    rows.iter().find(|row| row.device == DeviceKind::CPU && (row.admits)(fixed, hardware).is_ok())
}

fn admits(fixed: &EmbeddingStatic, hardware: &Hardware) -> Result<(), Refusal> {
    usual(fixed, hardware).map(|_| ()).ok_or_else(|| "no other row takes it".into())
}

fn run(launch: &Launch<'_>, fixed: &EmbeddingStatic, call: &EmbeddingDynamic, operands: Operands<'_>) -> Result<()> {
    let stream = launch.stream();
    let gate =
        GATES.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|all| all.get(&key(stream)).cloned());
    if gate.is_some_and(|gate| gate()) {
        return Err(Error::Operands { operator: "embedding", reason: "the test wants it to fail".to_owned() });
    }
    let usual = usual(fixed, stream.device().hardware()).expect("it was admitted");
    usual.launch(launch, fixed, call, operands)
}

/// The standard rows, with the gate before the others.
pub fn registry() -> Registry {
    let arithmetic = sinew::kernels::embedding::rows()[0].arithmetic;
    let row = Row {
        name: ROW,
        device: DeviceKind::CPU,
        arithmetic,
        admits,
        cost: |_, _, _| 0.0,
        workspace: |fixed, call, hardware| {
            usual(fixed, hardware).map_or(0, |row| (row.workspace)(fixed, call, hardware))
        },
        run,
    };
    let mut registry = Registry::standard();
    registry.add::<Embedding>([row]);
    registry
}

/// The policy under which that row is chosen.
pub fn policy() -> Policy {
    Policy { prefer: vec![ROW.to_owned()], ..Policy::default() }
}

/// Sets the gate of the models of a context.
pub fn set(ctx: &Context, gate: Gate) {
    GATES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(key(ctx.stream()), gate);
}
