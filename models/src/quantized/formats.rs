//! The table of formats: what configs call each, how it is read, and what is known of it before a tensor is.

use std::fmt;
use std::sync::Arc;

use super::QuantizedFormat;
use super::auto_round;
use super::awq::Awq;
use super::bitsandbytes::{self, Nf4};
use super::compressed::Compressed;
use super::config::unsupported;
use super::fp8::Fp8;
use super::gptq::Gptq;
use super::mxfp4::Mxfp4;
use super::patterns::Budget;
use crate::error::Result;
use crate::json::Fields;
use crate::tensors::Tensors;

/// A `quant_method`.
#[derive(Debug)]
pub(super) struct Method {
    /// As configs spell it, in lower case; the first is its name.
    names: &'static [&'static str],
    /// What of it is read, where the name says more.
    only: Option<&'static str>,
    /// The format that it is, which several may be.
    format: &'static str,
    /// What a config says.
    pub read: fn(&Fields<'_>, &mut Budget) -> Result<Arc<dyn QuantizedFormat>>,
    /// Ends of the names of tensors that may have floats which are no weights: scales, zero points, tables.
    floats: &'static [&'static str],
    /// Whether the fields that list modules which stay as they are say so here; else the format reads a list of its own.
    pub lists_left_out: bool,
    /// Whether its codes lie in one way though the floats of a module be `[in, out]`, as GPT-2 has them.
    pub of_transposed: bool,
}

const GPTQ: Method = Method {
    names: &["gptq"],
    only: None,
    format: "GPTQ",
    read: |fields, budget| Ok(Arc::new(Gptq::read(fields, budget)?)),
    floats: &[".scales"],
    lists_left_out: true,
    of_transposed: true,
};

const FP8: Method = Method {
    names: &["fp8"],
    only: None,
    format: "FP8",
    read: |fields, _| Ok(Arc::new(Fp8::read(fields)?)),
    floats: &[".weight_scale", ".weight_scale_inv"],
    lists_left_out: true,
    of_transposed: false,
};

/// Every method that is read.
static METHODS: [Method; 9] = [
    GPTQ,
    Method {
        names: &["awq"],
        only: None,
        format: "AWQ",
        read: |fields, _| Ok(Arc::new(Awq::read(fields)?)),
        floats: &[".scales"],
        lists_left_out: true,
        of_transposed: true,
    },
    Method { names: &["auto-round", "intel/auto-round"], read: auto_round::read, ..GPTQ },
    Method {
        names: &["compressed-tensors", "compressed_tensors"],
        only: None,
        format: "compressed-tensors",
        read: |fields, budget| Ok(Arc::new(Compressed::read(fields, budget)?)),
        floats: &[".weight_scale", ".weight_zero_point"],
        // There a name in `ignore` is one module or a class.
        lists_left_out: false,
        of_transposed: false,
    },
    FP8,
    Method { names: &["fbgemm_fp8"], read: |_, _| Ok(Arc::new(Fp8::of_rows())), ..FP8 },
    Method {
        names: &["modelopt"],
        only: Some("FP8"),
        read: |fields, _| Ok(Arc::new(Fp8::read_modelopt(fields)?)),
        ..FP8
    },
    Method {
        names: &["mxfp4"],
        only: None,
        format: "MXFP4",
        read: |_, _| Ok(Arc::new(Mxfp4)),
        // Its scales are integers.
        floats: &[],
        lists_left_out: true,
        of_transposed: false,
    },
    Method {
        names: &["bitsandbytes", "bitsandbytes_4bit"],
        only: Some("NF4"),
        format: "bitsandbytes",
        read: |fields, _| {
            bitsandbytes::check(fields)?;
            Ok(Arc::new(Nf4))
        },
        floats: &[".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"],
        lists_left_out: true,
        of_transposed: true,
    },
];

impl Method {
    /// That of a config which names it so.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for one that is not in the table.
    pub fn named(fields: &Fields<'_>, name: &str) -> Result<&'static Self> {
        let lower = name.to_ascii_lowercase();
        let found = METHODS.iter().find(|method| method.names.contains(&lower.as_str()));
        found.ok_or_else(|| unsupported(fields, "quant_method", name, &Self::known()))
    }

    /// All of them, in words.
    pub fn known() -> String {
        METHODS.each_ref().map(Self::to_string).join(", ")
    }

    /// The formats of those whose [`of_transposed`](Self::of_transposed) holds, in words.
    pub fn known_of_transposed() -> String {
        let mut formats = Vec::new();
        for method in METHODS.iter().filter(|method| method.of_transposed) {
            if !formats.contains(&method.format) {
                formats.push(method.format);
            }
        }
        formats.join(", ")
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names[0])?;
        self.only.map_or(Ok(()), |only| write!(f, " ({only})"))
    }
}

/// Whether a tensor holds codes, scales, zero points or tables of quantized weights, which say nothing of the model's dtype,
/// and may be more than the floats that do.
pub(crate) fn is_of_codes(tensors: &Tensors, tensor: &str) -> bool {
    METHODS.iter().flat_map(|method| method.floats).any(|end| tensor.ends_with(end))
        || bitsandbytes::has_codes(tensors, tensor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_name_is_that_of_one_method_and_what_is_unknown_is_told_all() {
        let empty = json!({});
        let fields = Fields::of(&empty, "config.json", "").expect("an object");
        for method in &METHODS {
            for name in method.names {
                let found = Method::named(&fields, &name.to_ascii_uppercase()).expect("it is in the table");
                assert!(std::ptr::eq(found, method), "{name} is {method} and {found}");
            }
        }
        let refused = Method::named(&fields, "aqlm").expect_err("unknown").to_string();
        for method in &METHODS {
            assert!(refused.contains(&method.to_string()), "{refused} has no {method}");
        }
    }
}
