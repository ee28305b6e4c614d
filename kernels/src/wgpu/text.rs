//! The text of a kernel: constants, parameters, bindings and accessors before its body.

use std::fmt::Write;

use sinew_memory::Accelerator;
use sinew_memory::webgpu::ShaderText;
use sinew_tensor::DType;

use super::interface::{Interface, Name, Operand, Steps};
use super::least_subgroup;

const PRELUDE: &str = include_str!("prelude.wgsl");
const REDUCE: &str = concat!(include_str!("reduce.wgsl"), include_str!("reduce_memory.wgsl"));
const REDUCE_SUBGROUP: &str = concat!(include_str!("reduce.wgsl"), include_str!("reduce_subgroup.wgsl"));

/// What a binding is an array of.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Words,
    AtomicWords,
    Quads,
    /// 16-bit integers: neighbours are written apart.
    Halves,
}

impl Form {
    fn of(operand: &Operand, interface: &Interface, offers: &Accelerator) -> Self {
        let mut shared = interface.operands.iter().filter(|other| other.slot == operand.slot).filter_map(|o| o.dtype);
        match (operand.quads, operand.atomic) {
            (true, _) => Self::Quads,
            _ if offers.f16 && shared.all(|dtype| dtype.size() == 2) => Self::Halves,
            (_, true) => Self::AtomicWords,
            _ => Self::Words,
        }
    }

    fn element(self) -> &'static str {
        match self {
            Self::Words => "u32",
            Self::AtomicWords => "atomic<u32>",
            Self::Quads => "vec4<u32>",
            Self::Halves => "u16",
        }
    }
}

/// The text of a kernel on a device that offers so much, of which an operand in several bindings has `window` bytes in
/// each.
pub(super) fn of(interface: &Interface, offers: &Accelerator, window: usize) -> ShaderText {
    let mut text = Text(String::new());
    if offers.f16 {
        text.line(format_args!("enable wgpu_int16;"));
    }
    for &(name, value) in interface.options.iter() {
        text.line(format_args!("const {name}: u32 = {value}u;"));
    }
    text.line(format_args!("struct Params {{ number: u32,"));
    for name in interface.params.iter() {
        match name {
            Name::Plain(name) => text.line(format_args!("{name}: u32,")),
            Name::Base(name) => text.line(format_args!("{name}_base: u32,")),
            Name::Size(name, d) => text.line(format_args!("{name}_size_{d}: u32,")),
            Name::Stride(name, d) => text.line(format_args!("{name}_stride_{d}: u32,")),
        }
    }
    text.line(format_args!("}}\n@group(1) @binding(0) var<uniform> p: Params;"));
    if interface.reports.is_some() {
        text.line(format_args!(
            "@group(2) @binding(0) var<storage, read_write> status: array<atomic<u32>>;
fn report(value: u32) {{ atomicMax(&status[0], p.number); atomicStore(&status[1], value); }}"
        ));
    }
    text.0 += PRELUDE;
    let mut bindings = 0;
    for operand in interface.operands.iter() {
        if operand.dtype.is_some() && operand.slot == bindings {
            let form = Form::of(operand, interface, offers);
            let element = form.element();
            for n in operand.slot..operand.slot + operand.windows {
                text.line(format_args!(
                    "@group(0) @binding({n}) var<storage, read_write> words_{n}: array<{element}>;"
                ));
            }
            let same = |other: &Operand| other.dtype.is_some() && other.slot == operand.slot;
            let written = interface.operands.iter().any(|other| same(other) && other.written);
            text.words(operand, form, written, window);
            bindings += operand.windows;
        }
    }
    for operand in interface.operands.iter() {
        text.operand(operand, Form::of(operand, interface, offers), interface.reports.is_some());
    }
    for walk in interface.walks.iter().flatten() {
        text.walk(walk);
    }
    if interface.options.iter().any(|&(name, _)| name == "WORKGROUP") {
        text.0 += if least_subgroup(offers).is_some() { REDUCE_SUBGROUP } else { REDUCE };
    }
    text.0 += interface.body;
    ShaderText { wgsl: text.0, bindings, reports: interface.reports }
}

struct Text(String);

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(line);
        self.0.push('\n');
    }

    /// `word_N(w)`: a word of what is bound from binding N on, or a half where it has those; `quad_N(q)`: four words,
    /// where vectors are; where it is written `set_N(w, v)`, and of atomics `merge_N(w, keep, v)`, which replaces the
    /// bits that are not to be kept.
    fn words(&mut self, operand: &Operand, form: Form, written: bool, window: usize) {
        let slot = operand.slot;
        if form == Form::Quads {
            let quad = in_window(operand, window / 16, "q", &|q| format!("return {q};"));
            self.line(format_args!("fn quad_{slot}(q: u32) -> vec4<u32> {{ {quad} }}"));
            self.line(format_args!("fn word_{slot}(w: u32) -> u32 {{ return quad_{slot}(w >> 2u)[w & 3u]; }}"));
            return;
        }
        let size = if form == Form::Halves { 2 } else { 4 };
        let word = |of: &dyn Fn(&str) -> String| in_window(operand, window / size, "w", of);
        let read = word(&|word| match form {
            Form::AtomicWords => format!("return atomicLoad(&{word});"),
            _ => format!("return u32({word});"),
        });
        self.line(format_args!("fn word_{slot}(w: u32) -> u32 {{ {read} }}"));
        if !written {
            return;
        }
        let set = word(&|word| match form {
            Form::AtomicWords => format!("atomicStore(&{word}, v);"),
            Form::Halves => format!("{word} = u16(v);"),
            _ => format!("{word} = v;"),
        });
        self.line(format_args!("fn set_{slot}(w: u32, v: u32) {{ {set} }}"));
        if form == Form::AtomicWords {
            let merge = word(&|word| format!("atomicAnd(&{word}, keep); atomicOr(&{word}, v);"));
            self.line(format_args!("fn merge_{slot}(w: u32, keep: u32, v: u32) {{ {merge} }}"));
        }
    }

    fn operand(&mut self, operand: &Operand, form: Form, reports: bool) {
        let name = operand.name;
        let upper = name.to_ascii_uppercase();
        self.line(format_args!("const HAS_{upper}: bool = {};", operand.dtype.is_some()));
        let Some(dtype) = operand.dtype else {
            self.line(format_args!("fn load_{name}(i: u32) -> f32 {{ return 0.0; }}"));
            self.line(format_args!("fn load4_{name}(i: u32) -> vec4<f32> {{ return vec4<f32>(); }}"));
            self.line(format_args!("fn store_{name}(i: u32, v: f32) {{}}"));
            return;
        };
        self.read(name, dtype, operand.slot, form);
        if operand.written {
            self.write(name, dtype, operand.slot, form);
        }
        if reports && matches!(dtype, DType::U32 | DType::I32 | DType::I64) {
            // A negative number has a large low word, or a high word.
            let outside = if dtype == DType::I64 { "bits.y != 0u || bits.x >= limit" } else { "bits.x >= limit" };
            self.line(format_args!(
                "fn index_{name}(i: u32, limit: u32) -> u32 {{
    let bits = bits_{name}(i);
    if ({outside}) {{ report(bits.x); return limit; }}
    return bits.x;
}}"
            ));
        }
    }

    fn read(&mut self, name: &str, dtype: DType, slot: usize, form: Form) {
        let bits = match dtype.size() {
            _ if form == Form::Halves => format!("vec2(word_{slot}(at), 0u)"),
            8 => format!("vec2(word_{slot}(at * 2u), word_{slot}(at * 2u + 1u))"),
            4 => format!("vec2(word_{slot}(at), 0u)"),
            2 => format!("vec2((word_{slot}(at >> 1u) >> ((at & 1u) << 4u)) & 0xffffu, 0u)"),
            _ => format!("vec2((word_{slot}(at >> 2u) >> ((at & 3u) << 3u)) & 0xffu, 0u)"),
        };
        self.line(format_args!("fn bits_{name}(i: u32) -> vec2<u32> {{ let at = p.{name}_base + i; return {bits}; }}"));
        let value = match dtype {
            DType::F32 => "bitcast<f32>(bits.x)".into(),
            DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => format!("f32_of_{}(bits.x)", short(dtype)),
            // Nothing computes in 64 bits: such values can only be moved.
            DType::F64 => return,
            _ => {
                let high: String = match dtype {
                    DType::I32 => "vec2(bits.x, select(0u, ~0u, bits.x >> 31u == 1u))".into(),
                    DType::I16 | DType::I8 => {
                        let width = 8 * dtype.size();
                        let (carried, sign) = (u32::MAX << width, width - 1);
                        format!("select(bits, vec2(bits.x | {carried}u, ~0u), bits.x >> {sign}u == 1u)")
                    }
                    _ => "bits".into(),
                };
                self.line(format_args!(
                    "fn load_{name}(i: u32) -> vec2<u32> {{ let bits = bits_{name}(i); return {high}; }}"
                ));
                return;
            }
        };
        self.line(format_args!("fn load_{name}(i: u32) -> f32 {{ let bits = bits_{name}(i); return {value}; }}"));
        self.read_four(name, dtype, slot, form);
    }

    /// `load4_x`: as few loads as the binding and the address allow.
    fn read_four(&mut self, name: &str, dtype: DType, slot: usize, form: Form) {
        let single = format!("vec4(load_{name}(i), load_{name}(i + 1u), load_{name}(i + 2u), load_{name}(i + 3u))");
        let pair = match dtype {
            DType::F16 => "vec4(unpack2x16float(w.x), unpack2x16float(w.y))",
            DType::BF16 => "bitcast<vec4<f32>>(vec4(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u))",
            _ => "",
        };
        let body = match (dtype, form) {
            (DType::F32, Form::Quads) => format!("return bitcast<vec4<f32>>(quad_{slot}((p.{name}_base + i) >> 2u));"),
            (DType::F16 | DType::BF16, Form::Quads) => format!(
                "let at = p.{name}_base + i; let q = quad_{slot}(at >> 3u);
    let w = select(q.xy, q.zw, (at & 4u) != 0u); return {pair};"
            ),
            (DType::F16 | DType::BF16, Form::Words | Form::AtomicWords) => format!(
                "let at = p.{name}_base + i; if ((at & 1u) == 1u) {{ return {single}; }}
    let w = vec2(word_{slot}(at >> 1u), word_{slot}((at >> 1u) + 1u)); return {pair};"
            ),
            _ => format!("return {single};"),
        };
        self.line(format_args!("fn load4_{name}(i: u32) -> vec4<f32> {{ {body} }}"));
    }

    fn write(&mut self, name: &str, dtype: DType, slot: usize, form: Form) {
        let put = match dtype.size() {
            _ if form == Form::Halves => format!("set_{slot}(at, v.x);"),
            8 => format!("set_{slot}(at * 2u, v.x); set_{slot}(at * 2u + 1u, v.y);"),
            4 => format!("set_{slot}(at, v.x);"),
            size => {
                let (word, lane, width) = if size == 2 { (1, 1, 4) } else { (2, 3, 3) };
                let mask = if size == 2 { 0xffff } else { 0xff };
                format!(
                    "let shift = (at & {lane}u) << {width}u;
    merge_{slot}(at >> {word}u, ~({mask}u << shift), (v.x & {mask}u) << shift);"
                )
            }
        };
        self.line(format_args!("fn put_{name}(i: u32, v: vec2<u32>) {{ let at = p.{name}_base + i; {put} }}"));
        let bits = match dtype {
            DType::F32 => "bitcast<u32>(v)".into(),
            DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => format!("{}_of_f32(v)", short(dtype)),
            DType::F64 => return,
            _ => {
                self.line(format_args!("fn store_{name}(i: u32, v: vec2<u32>) {{ put_{name}(i, v); }}"));
                return;
            }
        };
        self.line(format_args!("fn store_{name}(i: u32, v: f32) {{ put_{name}(i, vec2({bits}, 0u)); }}"));
        let single = format!("store_{name}(i, v.x); store_{name}(i + 1u, v.y);");
        let body = if dtype.size() == 2 && form != Form::Halves {
            let both = format!("{0}_of_f32(v.x) | ({0}_of_f32(v.y) << 16u)", short(dtype));
            let whole = format!("set_{slot}(at >> 1u, {both});");
            format!("let at = p.{name}_base + i; if ((at & 1u) == 0u) {{ {whole} }} else {{ {single} }}")
        } else {
            single
        };
        self.line(format_args!("fn store2_{name}(i: u32, v: vec2<f32>) {{ {body} }}"));
    }

    /// `at_x` of each operand of a walk.
    fn walk(&mut self, walk: &Steps) {
        let sizes = walk.operands[0];
        for name in walk.operands.iter().filter(|name| !name.is_empty()) {
            self.line(format_args!("fn at_{name}(i: u32) -> u32 {{ var rest = i; var at = 0u;"));
            for d in (1..walk.rank).rev() {
                self.line(format_args!("at += (rest % p.{sizes}_size_{d}) * p.{name}_stride_{d};"));
                self.line(format_args!("rest /= p.{sizes}_size_{d};"));
            }
            self.line(format_args!("return at + rest * p.{name}_stride_0; }}"));
        }
    }
}

/// What is done with element `index` of all that an operand has, of which each of its bindings has `window`.
fn in_window(operand: &Operand, window: usize, index: &str, of: &dyn Fn(&str) -> String) -> String {
    let slot = operand.slot;
    if operand.windows == 1 {
        return of(&format!("words_{slot}[{index}]"));
    }
    let (mask, bits) = (window - 1, window.ilog2());
    let mut text = format!("let at = {index} & {mask}u; switch {index} >> {bits}u {{ ");
    for n in 1..operand.windows {
        let _ = write!(text, "case {n}u: {{ {} }} ", of(&format!("words_{}[at]", slot + n)));
    }
    text + &format!("default: {{ {} }} }}", of(&format!("words_{slot}[at]")))
}

/// The name that functions of the prelude have a type by.
fn short(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F8E4M3 => "f8e4m3",
        DType::F8E5M2 => "f8e5m2",
        _ => "f32",
    }
}
