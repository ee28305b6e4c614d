//! `sinew explain --support`: what is supported, as the kernels themselves say.

use std::io::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use sinew::kernels::Registry;
use sinew::kernels::support::{Cell, Support};
use sinew::memory::{Device, Found, discover};
use sinew::models::settings::Source;

use super::super::devices::of_device;
use super::super::{Outcome, Run};

/// Asks the kernels about the device of this run, or every one of this machine where nothing names one.
pub(super) fn run(run: &Run, as_json: bool) -> Outcome {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut absent = Vec::new();
    if run.resolved().source("device") != &Source::Default {
        devices.push(run.device()?);
    } else {
        for found in discover() {
            match found.found {
                Found::Nothing { reason } => absent.push((found.name, reason)),
                _ => devices.push(of_device(run, &found.name).open_device()?),
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
