//! What auto-round writes: tensors as GPTQ or AWQ pack them, under a config of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::QuantizedFormat;
use super::awq::Awq;
use super::config::{MAX_BITS, refuse, unsupported};
use super::gptq::{Dynamic, EXTRA, Gptq};
use super::patterns::{Budget, Expression};
use crate::error::Result;
use crate::json::Fields;

/// What a config says.
pub(super) fn read(fields: &Fields<'_>, budget: &mut Budget) -> Result<Arc<dyn QuantizedFormat>> {
    Ok(match Packing::of(fields)? {
        Packing::Gptq { version_1 } => Arc::new(read_gptq(fields, version_1, budget)?),
        Packing::Awq => {
            refuse_extra(fields)?;
            Arc::new(Awq::read(fields)?)
        }
    })
}

/// What a config says of what is packed as GPTQ has it.
fn read_gptq(fields: &Fields<'_>, version_1: bool, budget: &mut Budget) -> Result<Gptq> {
    // Its own name for what is refused of the others.
    refuse(fields, "rotation_config", |_| false)?;
    let gptq = Gptq::of_version(fields, version_1, budget)?;
    let (mut whole, mut expressions) = (BTreeMap::new(), Vec::new());
    if let Some(section) = fields.section(EXTRA)? {
        for key in section.keys() {
            let over = section.required(key, section.section(key)?)?;
            let of = match is_left_out(&over)? {
                true => Dynamic::LeftOut,
                false => Dynamic::As(gptq.scheme().with(&over)?),
            };
            // Whole names, or expressions.
            match key.contains(|letter| "*+?^$()[]{}|\\".contains(letter)) {
                true => {
                    let problem = |problem: &str| section.problem(key, problem);
                    expressions.push((Expression::new(key, budget, problem)?, of));
                }
                false => drop(whole.insert(key.to_owned(), of)),
            }
        }
    }
    Ok(gptq.with_extra(whole, expressions))
}

/// How auto-round packs tensors.
enum Packing {
    /// As GPTQ has them, in version 1 or 2.
    Gptq { version_1: bool },
    /// As AWQ has them.
    Awq,
}

impl Packing {
    /// What a config says.
    ///
    /// Its releases up to 0.4 name how tensors are packed, and the kernel, in `backend`; later ones, whose `backend` is the
    /// kernel alone, in `packing_format`. What has `gptq` in it is packed as AutoGPTQ has it, in version 1; what is its own,
    /// or GPTQModel's, in version 2.
    fn of(fields: &Fields<'_>) -> Result<Self> {
        const VERSION_1: [&str; 4] = ["auto_round:auto_gptq", "auto_round:gptq", "auto_gptq", "gptq"];
        const VERSION_2: [&str; 2] = ["auto_round:gptqmodel", "auto_round"];
        const AWQ: [&str; 4] = ["auto_round:auto_awq", "auto_round:awq", "auto_awq", "awq"];
        /// Kernels whose tensors are packed alike.
        const KERNELS: [&str; 6] = ["exllamav2", "exllamav1", "exllama", "tritonv2", "triton", "cuda"];
        let names = ["packing_format", "backend"];
        let Some(name) = names.into_iter().find(|name| fields.get(name).is_some()) else {
            return Err(fields.problem(names[0], "is missing, as is `backend`: zero points are stored in two ways"));
        };
        let found = fields.required(name, fields.text(name)?)?.to_ascii_lowercase();
        // As its first release has it.
        let found = found.replace("autoround", "auto_round").replace("auto-round", "auto_round");
        let format = match found.rsplit_once(':') {
            Some((format, kernel)) if KERNELS.contains(&kernel) => format,
            // What its loader takes it for.
            None if found == "auto" && name == "packing_format" => VERSION_1[0],
            _ => &found,
        };
        if AWQ.contains(&format) {
            return Ok(Self::Awq);
        }
        let version_1 = VERSION_1.contains(&format);
        if !version_1 && !VERSION_2.contains(&format) {
            return Err(unsupported(fields, name, &found, &[&VERSION_1[..], &VERSION_2, &AWQ].concat().join(", ")));
        }
        Ok(Self::Gptq { version_1 })
    }
}

/// Refuses what a config says of single modules, but for those that it leaves out.
fn refuse_extra(fields: &Fields<'_>) -> Result<()> {
    if let Some(section) = fields.section(EXTRA)? {
        for key in section.keys() {
            let over = section.required(key, section.section(key)?)?;
            if !is_left_out(&over)? {
                return Err(unsupported(&section, key, "a scheme of its own", "modules that are left out"));
            }
        }
    }
    Ok(())
}

/// Whether a module is left out: floats have 16 bits and more.
fn is_left_out(over: &Fields<'_>) -> Result<bool> {
    Ok(over.count("bits", MAX_BITS)?.is_some_and(|bits| bits >= 16))
}
