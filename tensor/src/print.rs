//! Tensors as text, as NumPy prints arrays: aligned columns, the ends only of large ones.

use std::fmt;

use half::{bf16, f16};

use crate::error::Result;
use crate::{DType, Element, Tensor};

/// Tensors of more elements are shown by their ends.
const WHOLE: usize = 1000;
/// Indices shown at each end of a dimension then.
const EDGE: usize = 3;
/// Characters in a line, after which a row continues in the next.
const WIDTH: usize = 75;
/// Digits after the point, at most.
const PRECISION: usize = 8;
/// Device memory up to this size is fetched at once to be printed, and beyond it element by element.
const FETCH: usize = 1 << 20;

/// An element, as far as printing goes.
#[derive(Clone, Copy)]
enum Value {
    Float(f64),
    Int(i64),
    Bool(bool),
}

fn value(dtype: DType, bytes: &[u8]) -> Value {
    fn read<T: Element>(bytes: &[u8]) -> T {
        bytemuck::pod_read_unaligned(bytes)
    }
    match dtype {
        DType::F64 => Value::Float(read(bytes)),
        DType::F32 => Value::Float(read::<f32>(bytes).into()),
        DType::F16 => Value::Float(read::<f16>(bytes).into()),
        DType::BF16 => Value::Float(read::<bf16>(bytes).into()),
        DType::F8E4M3 => Value::Float(float8::F8E4M3::from_bits(bytes[0]).to_f64()),
        DType::F8E5M2 => Value::Float(float8::F8E5M2::from_bits(bytes[0]).to_f64()),
        DType::I64 => Value::Int(read(bytes)),
        DType::I32 => Value::Int(read::<i32>(bytes).into()),
        DType::I16 => Value::Int(read::<i16>(bytes).into()),
        DType::I8 => Value::Int(read::<i8>(bytes).into()),
        DType::U32 => Value::Int(read::<u32>(bytes).into()),
        DType::U8 => Value::Int(read::<u8>(bytes).into()),
        DType::Bool => Value::Bool(bytes[0] != 0),
    }
}

/// The indices of a dimension that are shown, and whether some between them are not.
fn shown(size: usize, whole: bool) -> (impl Iterator<Item = usize> + Clone, bool) {
    let cut = !whole && size > 2 * EDGE;
    let (head, tail) = if cut { (EDGE, size - EDGE) } else { (size, size) };
    ((0..head).chain(tail..size), cut)
}

/// The values to show, in row-major order.
fn values(tensor: &Tensor) -> Result<Vec<Value>> {
    let (layout, size) = (*tensor.layout(), tensor.dtype().size());
    let whole = layout.elements() <= WHOLE;
    let mut places = vec![layout.offset()];
    for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
        let (indices, _) = shown(extent, whole);
        places = places.iter().flat_map(|&at| indices.clone().map(move |i| at + i * stride)).collect();
    }
    if tensor.buffer().host_ptr().is_some() || (layout.end() - layout.offset()) * size <= FETCH {
        let bytes = tensor.span_bytes()?;
        let element = |at: usize| value(tensor.dtype(), &bytes[(at - layout.offset()) * size..][..size]);
        return Ok(places.into_iter().map(element).collect());
    }
    let stream = tensor.device().clone().stream()?;
    let mut bytes = [0; 8];
    let element = |at: usize| {
        stream.download(tensor.buffer(), at * size, &mut bytes[..size])?;
        Ok(value(tensor.dtype(), &bytes[..size]))
    };
    places.into_iter().map(element).collect()
}

/// The values as text, all equally wide.
fn texts(values: &[Value], dtype: DType) -> Vec<String> {
    let finite = || {
        values.iter().filter_map(|&value| match value {
            Value::Float(x) if x.is_finite() => Some(x),
            _ => None,
        })
    };
    let (least, most) = finite()
        .filter(|&x| x != 0.0)
        .fold((f64::INFINITY, 0.0f64), |(least, most), x| (least.min(x.abs()), most.max(x.abs())));
    // NumPy's rule.
    let scientific = most >= 1e8 || least < 1e-4 || most / least > 1e3;
    let digits = finite().map(|x| digits(x, dtype, scientific)).max().unwrap_or(0);
    let mut texts: Vec<String> = values
        .iter()
        .map(|&value| match value {
            Value::Int(x) => x.to_string(),
            Value::Bool(x) => if x { "True" } else { "False" }.to_owned(),
            Value::Float(x) if x.is_nan() => "nan".to_owned(),
            Value::Float(x) if x.is_infinite() => format!("{x}"),
            Value::Float(x) if scientific => exponential(x, digits),
            Value::Float(x) => fixed(x, dtype, digits),
        })
        .collect();
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    for text in &mut texts {
        *text = format!("{text:>width$}");
    }
    texts
}

/// The fewest digits after the point that tell the value from its neighbours of that dtype.
fn digits(x: f64, dtype: DType, scientific: bool) -> usize {
    let text = |digits: usize| if scientific { format!("{x:.digits$e}") } else { format!("{x:.digits$}") };
    let unique = (0..PRECISION).find(|&digits| text(digits).parse().is_ok_and(|y| dtype.round(y) == x));
    unique.unwrap_or_else(|| {
        let cut = text(PRECISION);
        let mantissa = cut.split('e').next().unwrap_or(&cut);
        PRECISION - (mantissa.len() - mantissa.trim_end_matches('0').len()).min(PRECISION)
    })
}

/// As `1.5`, or `1.`, with blanks in the place of further zeros.
fn fixed(x: f64, dtype: DType, most: usize) -> String {
    let digits = digits(x, dtype, false).min(most);
    let point = if digits == 0 { "." } else { "" };
    format!("{x:.digits$}{point}{:1$}", "", most - digits)
}

/// As `1.5e+10`, or `1.e-05`.
fn exponential(x: f64, digits: usize) -> String {
    let text = format!("{x:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    let point = if digits == 0 { "." } else { "" };
    format!("{mantissa}{point}e{sign}{exponent:0>2}")
}

/// Writes the rows of `shape`, of which the texts are what is shown, indented by `depth` after the first line.
fn write(out: &mut String, shape: &[usize], whole: bool, depth: usize, texts: &mut dyn Iterator<Item = String>) {
    let Some((&size, inner)) = shape.split_first() else {
        out.extend(texts.next());
        return;
    };
    let (indices, cut) = shown(size, whole);
    let indent = " ".repeat(depth + 1);
    let mut column = indent.len();
    let mut separate = |out: &mut String, first: bool, next: usize| {
        if !inner.is_empty() {
            if !first {
                out.push_str(&"\n".repeat(inner.len()));
                out.push_str(&indent);
            }
            return;
        }
        // Room is kept for the brackets that may close.
        if !first && column + 1 + next > WIDTH - indent.len() {
            out.push('\n');
            out.push_str(&indent);
            column = indent.len();
        } else if !first {
            out.push(' ');
            column += 1;
        }
        column += next;
    };
    out.push('[');
    for (n, _) in indices.enumerate() {
        if cut && n == EDGE {
            separate(out, false, 3);
            out.push_str("...");
        }
        if inner.is_empty() {
            let text = texts.next().unwrap_or_default();
            separate(out, n == 0, text.len());
            out.push_str(&text);
        } else {
            separate(out, n == 0, 0);
            write(out, inner, whole, depth + 1, texts);
        }
    }
    out.push(']');
}

/// The elements as NumPy prints them; beyond 1,000 elements only the ends of each dimension.
///
/// ```
/// use sinew_memory::Cpu;
/// use sinew_tensor::Tensor;
/// let tensor = Tensor::from_slice(&Cpu::get(), &[1.0f32, 2.5, -3.0, 10.0], &[2, 2])?;
/// assert_eq!(tensor.to_string(), "[[ 1.   2.5]\n [-3.  10. ]]");
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.layout().elements() == 0 {
            return f.write_str("[]");
        }
        match values(self) {
            Ok(values) => {
                let mut out = String::new();
                let whole = self.layout().elements() <= WHOLE;
                write(&mut out, self.shape(), whole, 0, &mut texts(&values, self.dtype()).into_iter());
                f.write_str(&out)
            }
            Err(error) => write!(f, "<{error}>"),
        }
    }
}

/// Dtype, layout and device in one line, and the elements below it.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})\n{self}", self.dtype(), self.layout(), self.device().id())
    }
}
