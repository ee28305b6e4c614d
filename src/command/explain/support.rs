//! `sinew explain --support`: what is supported, as the kernels themselves say.

use std::io::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use sinew::kernels::Registry;
use sinew::kernels::support::{Cell, Support};
use sinew::memory::{Device, Found, discover};
use sinew::models::settings::Source;
use sinew::models::{Settings, one_line};

use super::super::devices::of_device;
use super::super::output::complain;
use super::super::{Outcome, Run};

/// Asks the kernels about the device of this run, or every one of this machine where nothing names one that there is.
pub(super) fn run(run: &Run, as_json: bool) -> Outcome {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut absent = Vec::new();
    // On as many threads as there are: it is the same on any number.
    let open = |name: &str| {
        let usual = Settings::default();
        let settings = Settings { threads: usual.threads, pin: usual.pin, ..of_device(run, name) };
        run.open(&settings, Settings::open_device)
    };
    match (run.resolved().source("device"), open(&run.settings().device)) {
        (Source::Default, _) => {}
        (_, Ok(device)) => devices.push(device),
        (Source::Argument(_), Err(error)) => return Err(error),
        // What a file or a variable says is for other commands as well.
        (_, Err(error)) => complain(&format!("warning: {}", one_line(&*error))),
    }
    if devices.is_empty() {
        for found in discover() {
            if let Found::Nothing { reason } = found.found {
                absent.push((found.name, reason));
                continue;
            }
            match open(&found.name) {
                Ok(device) => devices.push(device),
                Err(error) => absent.push((found.name, one_line(&*error))),
            }
        }
    }
    let support = Support::of(&Registry::standard(), &devices);
    let mut out = std::io::stdout().lock();
    if as_json {
        let devices: Vec<Value> = support.devices.iter().map(|(name, cells)| device(name, cells)).collect();
        let absent: Vec<Value> = absent.iter().map(|(name, why)| json!({ "device": name, "none": why })).collect();
        writeln!(out, "{}", json!({ "devices": devices, "absent": absent }))?;
        return Ok(());
    }
    write!(out, "{support}")?;
    for (name, why) in absent {
        writeln!(out, "{name}: none: {why}")?;
    }
    writeln!(
        out,
        "yes: a kernel takes it; -: none does; nothing: there is no such problem. In what products' weights,"
    )?;
    writeln!(out, "caches, tables or what else is read are stored; `sinew explain OPERATOR` says why of one.")?;
    Ok(())
}

fn device(name: &str, cells: &[Cell]) -> Value {
    let cell = |cell: &Cell| {
        json!({
            "operator": cell.operator,
            "stored": cell.stored.to_string(),
            "problem": cell.problem,
            "supported": cell.is_supported(),
            "kernels": cell.rows,
            "refused": cell.refused,
        })
    };
    json!({ "device": name, "cells": cells.iter().map(cell).collect::<Vec<_>>() })
}
