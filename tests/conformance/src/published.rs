//! Models in the formats that others publish: each weight of their layers is rounded to the nearest, without
//! calibration, which changes no size and no speed. Embeddings and heads stay as they are.

use std::error::Error;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sinew::tensor::BlockValues;

/// A format, in the groups that are usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// Of so many bits.
    Gptq(u32),
    /// With zero points, as AutoAWQ's `gemm` has it.
    Awq,
    /// compressed-tensors: `pack-quantized` in 4 bits in groups, and in 8 by rows.
    Packed(u32),
    /// The same: `int-quantized`, for activations in int8.
    W8A8,
    /// The same: `float-quantized` by rows.
    Float8,
    /// FP8 with a scale for each block of rows and columns.
    Fp8Blocks,
    /// Each matrix as if it were one expert.
    Mxfp4,
    /// bitsandbytes' NF4, whose scales are not quantized.
    Nf4,
}

/// Inputs of a group of integers, and both sides of a block of FP8.
const GROUP: usize = 128;
/// The output of a word of AWQ that each of its nibbles belongs to.
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A tensor: its name, and what it holds.
type Entry = (String, Dtype, Vec<usize>, Vec<u8>);

impl Published {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Gptq(4),
        Self::Gptq(8),
        Self::Awq,
        Self::Packed(4),
        Self::Packed(8),
        Self::W8A8,
        Self::Float8,
        Self::Fp8Blocks,
        Self::Mxfp4,
        Self::Nf4,
    ];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gptq(4) => "gptq-int4",
            Self::Gptq(_) => "gptq-int8",
            Self::Awq => "awq",
            Self::Packed(4) => "compressed-int4",
            Self::Packed(_) => "compressed-int8",
            Self::W8A8 => "compressed-w8a8",
            Self::Float8 => "compressed-fp8",
            Self::Fp8Blocks => "fp8-blocks",
            Self::Mxfp4 => "mxfp4",
            Self::Nf4 => "nf4",
        }
    }

    fn config(self) -> Value {
        let compressed = |format: &str, weights: Value| {
            json!({ "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
                    "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } })
        };
        let by_row = |bits: u32, kind: &str| json!({ "num_bits": bits, "type": kind, "strategy": "channel" });
        match self {
            Self::Gptq(bits) => json!({ "quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": true }),
            Self::Awq => json!({ "quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm" }),
            Self::Packed(4) => {
                compressed("pack-quantized", json!({ "num_bits": 4, "type": "int", "group_size": GROUP }))
            }
            Self::Packed(bits) => compressed("pack-quantized", by_row(bits, "int")),
            Self::W8A8 => compressed("int-quantized", by_row(8, "int")),
            Self::Float8 => compressed("float-quantized", by_row(8, "float")),
            Self::Fp8Blocks => json!({ "quant_method": "fp8", "weight_block_size": [GROUP, GROUP] }),
            Self::Mxfp4 => json!({ "quant_method": "mxfp4" }),
            Self::Nf4 => json!({ "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4" }),
        }
    }

    /// What the weight `[n, k]` of a module becomes.
    fn tensors(self, name: &str, weight: &[f32], [n, k]: [usize; 2]) -> Vec<Entry> {
        let entry = |end: &str, dtype, shape: &[usize], bytes| (format!("{name}{end}"), dtype, shape.to_vec(), bytes);
        match self {
            Self::Gptq(bits) => {
                let (most, middle) = ((1 << bits) - 1, 1 << (bits - 1));
                let grid = grid(weight, k, GROUP, |group| (f16_of(2.0 * largest(group) / most as f32), middle));
                let codes = grid.codes(weight, k, GROUP, 0..=most);
                let zeros: Vec<i32> = grid.zeros(n).into_iter().map(|zero| zero - 1).collect();
                let words = along_columns(&codes, [n, k], bits);
                vec![
                    entry(".qweight", Dtype::I32, &[k * bits as usize / 32, n], words),
                    entry(
                        ".qzeros",
                        Dtype::I32,
                        &[grid.groups, n * bits as usize / 32],
                        along_rows(&zeros, n, bits, None),
                    ),
                    entry(".scales", Dtype::F16, &[grid.groups, n], grid.scales(n)),
                ]
            }
            Self::Awq => {
                let grid = grid(weight, k, GROUP, |group| {
                    let [low, high] =
                        [group.iter().copied().fold(0.0, f32::min), group.iter().copied().fold(0.0, f32::max)];
                    let scale = f16_of((high - low) / 15.0);
                    (scale, (-low / scale).round().clamp(0.0, 15.0) as i32)
                });
                let codes = grid.codes(weight, k, GROUP, 0..=15);
                let by_input: Vec<i32> = (0..k).flat_map(|i| codes.iter().skip(i).step_by(k).copied()).collect();
                vec![
                    entry(".qweight", Dtype::I32, &[k, n / 8], along_rows(&by_input, n, 4, Some(AWQ))),
                    entry(".qzeros", Dtype::I32, &[grid.groups, n / 8], along_rows(&grid.zeros(n), n, 4, Some(AWQ))),
                    entry(".scales", Dtype::F16, &[grid.groups, n], grid.scales(n)),
                ]
            }
            Self::Packed(_) | Self::W8A8 => {
                let (bits, group) = match self {
                    Self::Packed(4) => (4, GROUP),
                    _ => (8, k),
                };
                let least = -(1 << (bits - 1));
                let grid = grid(weight, k, group, |of| (bf16_of(2.0 * largest(of) / ((1 << bits) - 1) as f32), 0));
                let codes = grid.codes(weight, k, group, least..=-least - 1);
                let scales = entry(".weight_scale", Dtype::BF16, &[n, grid.groups], grid.scales_of_rows());
                if self == Self::W8A8 {
                    let bytes = codes.iter().map(|&code| code as u8).collect();
                    return vec![entry(".weight", Dtype::I8, &[n, k], bytes), scales];
                }
                let raised: Vec<i32> = codes.iter().map(|code| code - least).collect();
                let shape = [n, k].into_iter().flat_map(|extent| (extent as i64).to_le_bytes()).collect();
                vec![
                    entry(
                        ".weight_packed",
                        Dtype::I32,
                        &[n, k * bits as usize / 32],
                        along_rows(&raised, k, bits, None),
                    ),
                    scales,
                    entry(".weight_shape", Dtype::I64, &[2], shape),
                ]
            }
            Self::Float8 => {
                let grid = grid(weight, k, k, |row| (bf16_of(largest(row) / 448.0), 0));
                let codes = near(weight, BlockValues::F8E4M3, |row, _| grid.cells[row].0, k);
                vec![
                    entry(".weight", Dtype::F8_E4M3, &[n, k], codes),
                    entry(".weight_scale", Dtype::BF16, &[n, 1], grid.scales_of_rows()),
                ]
            }
            Self::Fp8Blocks => {
                let [rows, columns] = [n, k].map(|extent| extent.div_ceil(GROUP));
                let mut scales = vec![0f32; rows * columns];
                for (at, value) in weight.iter().enumerate() {
                    let scale = &mut scales[at / k / GROUP * columns + at % k / GROUP];
                    *scale = scale.max(value.abs() / 448.0);
                }
                let codes = near(weight, BlockValues::F8E4M3, |row, i| scales[row / GROUP * columns + i / GROUP], k);
                let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                vec![
                    entry(".weight", Dtype::F8_E4M3, &[n, k], codes),
                    entry(".weight_scale_inv", Dtype::F32, &[rows, columns], scales),
                ]
            }
            Self::Mxfp4 => {
                const OF: usize = 32;
                // The largest of a group lies between 4 and 8 of its scale, and values go to 6.
                let grid = grid(weight, k, OF, |group| ((largest(group).log2().floor() - 2.0).exp2(), 0));
                let codes = near(weight, BlockValues::F4E2M1, |row, i| grid.cells[row * grid.groups + i / OF].0, k);
                let pairs = codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4).collect();
                let exponents = grid.cells.iter().map(|(scale, _)| (scale.log2() + 127.0) as u8).collect();
                vec![
                    entry("_blocks", Dtype::U8, &[1, n, k / OF, OF / 2], pairs),
                    entry("_scales", Dtype::U8, &[1, n, k / OF], exponents),
                ]
            }
            Self::Nf4 => {
                const OF: usize = 64;
                let grid = grid(weight, k, OF, |group| (largest(group), 0));
                let codes = near(weight, BlockValues::Nf4, |row, i| grid.cells[row * grid.groups + i / OF].0, k);
                let pairs = codes.as_chunks::<2>().0.iter().map(|[high, low]| low | high << 4).collect();
                let floats = |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect();
                let state = json!({ "quant_type": "nf4", "blocksize": OF, "dtype": "bfloat16", "shape": [n, k] })
                    .to_string()
                    .into_bytes();
                vec![
                    entry(".weight", Dtype::U8, &[n * k / 2, 1], pairs),
                    entry(
                        ".weight.absmax",
                        Dtype::F32,
                        &[n * k / OF],
                        floats(&mut grid.cells.iter().map(|cell| cell.0)),
                    ),
                    entry(".weight.quant_map", Dtype::F32, &[16], floats(&mut BlockValues::NF4.into_iter())),
                    entry(".weight.quant_state.bitsandbytes__nf4", Dtype::U8, &[state.len()], state),
                ]
            }
        }
    }

    /// Writes the model of a folder, whose weights are in one file, into another one, which must not be there yet.
    ///
    /// # Errors
    /// Files that cannot be read or written, or weights in other dtypes than bf16 and f32.
    pub fn write(self, source: &Path, output: &Path) -> Result<(), Box<dyn Error>> {
        const WEIGHTS: &str = "model.safetensors";
        const CONFIG: &str = "config.json";
        copy(source, output, &[WEIGHTS, CONFIG])?;
        let mut config: Value = serde_json::from_slice(&fs::read(source.join(CONFIG))?)?;
        config["quantization_config"] = self.config();
        fs::write(output.join(CONFIG), format!("{config:#}\n"))?;
        let bytes = fs::read(source.join(WEIGHTS))?;
        let mut entries: Vec<Entry> = Vec::new();
        for (name, tensor) in SafeTensors::deserialize(&bytes)?.iter() {
            let of_layer = name.split('.').any(|part| part.parse::<usize>().is_ok());
            match (name.strip_suffix(".weight"), tensor.shape()) {
                (Some(module), &[n, k]) if of_layer => {
                    entries.extend(self.tensors(module, &floats(tensor.data(), tensor.dtype())?, [n, k]));
                }
                _ => entries.push((name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())),
            }
        }
        let views = entries.iter().map(|(name, dtype, shape, bytes)| {
            Ok::<_, safetensors::SafeTensorError>((name, TensorView::new(*dtype, shape.clone(), bytes)?))
        });
        Ok(safetensors::serialize_to_file(views.collect::<Result<Vec<_>, _>>()?, None, &output.join(WEIGHTS))?)
    }
}

/// A folder with the folders inside it, but for some files.
fn copy(from: &Path, to: &Path, without: &[&str]) -> Result<(), Box<dyn Error>> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to, &[])?;
        } else if !without.iter().any(|name| entry.file_name() == *name) {
            fs::copy(from, to)?;
        }
    }
    Ok(())
}

/// The scale and the zero point of each group of each row.
struct Grid {
    groups: usize,
    cells: Vec<(f32, i32)>,
}

fn grid(weight: &[f32], k: usize, group: usize, of: impl Fn(&[f32]) -> (f32, i32)) -> Grid {
    let cells = weight.chunks(k).flat_map(|row| row.chunks(group).map(&of)).collect();
    Grid { groups: k.div_ceil(group), cells }
}

impl Grid {
    /// `[n, k]`, each in a range.
    fn codes(&self, weight: &[f32], k: usize, group: usize, range: RangeInclusive<i32>) -> Vec<i32> {
        let code = |(at, value): (usize, &f32)| {
            let (scale, zero) = self.cells[at / k * self.groups + at % k / group];
            ((value / scale).round_ties_even() as i32 + zero).clamp(*range.start(), *range.end())
        };
        weight.iter().enumerate().map(code).collect()
    }

    /// `[groups, n]`.
    fn by_group(&self, n: usize) -> impl Iterator<Item = (f32, i32)> {
        (0..self.groups).flat_map(move |group| (0..n).map(move |row| self.cells[row * self.groups + group]))
    }

    fn scales(&self, n: usize) -> Vec<u8> {
        self.by_group(n).flat_map(|(scale, _)| f16::from_f32(scale).to_le_bytes()).collect()
    }

    fn zeros(&self, n: usize) -> Vec<i32> {
        self.by_group(n).map(|(_, zero)| zero).collect()
    }

    /// `[n, groups]`.
    fn scales_of_rows(&self) -> Vec<u8> {
        self.cells.iter().flat_map(|(scale, _)| bf16::from_f32(*scale).to_le_bytes()).collect()
    }
}

/// Words of so many bits' values, along rows of `width`, the value of each place in the order that is given.
fn along_rows(values: &[i32], width: usize, bits: u32, order: Option<[usize; 8]>) -> Vec<u8> {
    let per_word = 32 / bits as usize;
    let order = order.unwrap_or(std::array::from_fn(|place| place));
    let word = |of: &[i32]| {
        (0..per_word).fold(0u32, |word, place| word | (of[order[place]] as u32) << (place * bits as usize))
    };
    values.chunks(width).flat_map(|row| row.chunks_exact(per_word).map(word)).flat_map(u32::to_le_bytes).collect()
}

/// Words `[k / n, rows]` of values `[rows, k]`.
fn along_columns(values: &[i32], [n, k]: [usize; 2], bits: u32) -> Vec<u8> {
    let per_word = 32 / bits as usize;
    let word = |row: usize, at: usize| {
        (0..per_word).fold(0u32, |word, i| word | (values[row * k + at * per_word + i] as u32) << (i * bits as usize))
    };
    (0..k / per_word).flat_map(|at| (0..n).map(move |row| word(row, at))).flat_map(u32::to_le_bytes).collect()
}

/// The codes whose values, times the scale of row and column, are the nearest.
fn near(weight: &[f32], values: BlockValues, scale: impl Fn(usize, usize) -> f32, k: usize) -> Vec<u8> {
    let codes = 0..=u8::MAX >> (8 - values.bits());
    let mut table: Vec<(f32, u8)> =
        codes.map(|code| (values.value(code), code)).filter(|(v, _)| v.is_finite()).collect();
    table.sort_by(|a, b| a.0.total_cmp(&b.0));
    let nearest = |(at, value): (usize, &f32)| {
        let value = value / scale(at / k, at % k);
        let above = table.partition_point(|(of, _)| *of < value).min(table.len() - 1);
        let below = above.saturating_sub(1);
        let is_below = value - table[below].0 < table[above].0 - value;
        table[if is_below { below } else { above }].1
    };
    weight.iter().enumerate().map(nearest).collect()
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()))
}

fn f16_of(value: f32) -> f32 {
    f16::from_f32(value).to_f32().max(f16::MIN_POSITIVE.to_f32())
}

fn bf16_of(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

fn floats(bytes: &[u8], dtype: Dtype) -> Result<Vec<f32>, Box<dyn Error>> {
    match dtype {
        Dtype::BF16 => Ok(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()),
        Dtype::F32 => Ok(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
        other => Err(format!("weights of {other:?}; bf16 and f32 are rounded").into()),
    }
}
