//! The problems: shapes of models from MiniLM to a billion parameters, in every form that has more than one row.

use sinew_kernels::Compute;
use sinew_kernels::activation::{Activate, Activation, ActivationDynamic, ActivationStatic, Gate};
use sinew_kernels::attention::{Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew_kernels::cast::{Cast, CastStatic};
use sinew_kernels::elementwise::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic,
};
use sinew_kernels::embedding::{Embedding, EmbeddingDynamic, EmbeddingStatic, TableKind};
use sinew_kernels::gemm::{Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::grouped_gemm::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use sinew_kernels::harness::case::Lay;
use sinew_kernels::kv_append::{KvAppend, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::norm::{Norm, NormDynamic, NormFormula, NormKind, NormStatic};
use sinew_kernels::packed::{Encoding, Format};
use sinew_kernels::reduce::{Reduce, ReduceDynamic, ReduceFunction, ReduceStatic};
use sinew_kernels::rotary::{Rotary, RotaryDynamic, RotaryStatic, Style};
use sinew_kernels::softmax::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use sinew_kernels::topk::{TopK, TopKDynamic, TopKStatic};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::{Grid, Result};

const F32: DType = DType::F32;
const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

pub fn walk(grid: &mut Grid) -> Result {
    products(grid)?;
    unpacked(grid)?;
    grouped(grid)?;
    attention(grid)?;
    rows(grid)?;
    elements(grid)?;
    positions(grid)
}

fn format(encoding: impl Into<Encoding>) -> Result<&'static Format> {
    Ok(Format::in_panels(encoding.into()).ok_or("no format")?)
}

/// Packed weights of floats and of blocks, from one row to a prompt.
fn products(grid: &mut Grid) -> Result {
    let blocks = |values, group, zero_points| BlockFormat::new(values, group, BF16, zero_points);
    let forms: [(Encoding, DType, Compute); 9] = [
        (F32.into(), F32, Compute::F32),
        (F16.into(), F16, Compute::F32),
        (BF16.into(), BF16, Compute::Bf16),
        (BF16.into(), F32, Compute::F32),
        (blocks(BlockValues::Int4, 32, false)?.into(), BF16, Compute::Bf16),
        (blocks(BlockValues::Int4, 32, false)?.into(), BF16, Compute::Int8),
        (blocks(BlockValues::Int4, 128, true)?.into(), F32, Compute::F32),
        (blocks(BlockValues::Int8, 32, false)?.into(), BF16, Compute::Int8),
        (blocks(BlockValues::F8E4M3, 128, false)?.into(), BF16, Compute::Bf16),
    ];
    for (encoding, dtype, compute) in forms {
        for [n, k] in [[384, 384], [896, 896], [4864, 896], [896, 4864]] {
            let fixed = GemmStatic::new(n, k, dtype, Rhs::Packed(format(encoding)?), dtype, compute);
            for m in [1, 4, 32, 200] {
                grid.problem::<Gemm>(fixed.clone(), GemmDynamic { batch: 1, m })?;
            }
        }
    }
    Ok(())
}

/// Right operands that are tensors, by rows and by columns.
fn unpacked(grid: &mut Grid) -> Result {
    for (dtype, compute) in [(F32, Compute::F32), (F16, Compute::F32), (BF16, Compute::Bf16), (F32, Compute::Int8)] {
        for [batch, n, k] in [[1, 512, 512], [12, 128, 64], [12, 64, 128], [1, 2048, 256]] {
            let fixed = GemmStatic::new(n, k, dtype, Rhs::Strided(dtype), dtype, compute);
            for m in [1, 16, 128] {
                for lay in [Lay::Contiguous, Lay::Transposed] {
                    grid.laid::<Gemm>(fixed.clone(), GemmDynamic { batch, m }, lay)?;
                }
            }
        }
    }
    Ok(())
}

fn grouped(grid: &mut Grid) -> Result {
    let int4 = BlockFormat::new(BlockValues::Int4, 32, BF16, false)?;
    for (encoding, compute) in [(Encoding::from(BF16), Compute::Bf16), (int4.into(), Compute::Bf16)] {
        for gated in [None, Some(Activation::Silu)] {
            let (n, k, gathered) = (512, 512, false);
            let format = format(encoding)?;
            let bias = None;
            let fixed =
                GroupedGemmStatic { groups: 8, n, k, a: BF16, format, gathered, bias, out: BF16, compute, gated };
            for rows in [2, 16, 128] {
                grid.problem::<GroupedGemm>(fixed.clone(), GroupedGemmDynamic { rows })?;
            }
        }
    }
    Ok(())
}

/// Decoding and prompts, over keys in every form.
fn attention(grid: &mut Grid) -> Result {
    let forms = [
        (F32, F32, Compute::F32),
        (BF16, BF16, Compute::Bf16),
        (BF16, DType::I8, Compute::Bf16),
        (BF16, DType::F8E4M3, Compute::Bf16),
    ];
    for (dtype, kv, compute) in forms {
        for [num_heads, num_kv_heads, head_dim] in [[14, 2, 64], [32, 8, 64], [8, 8, 128]] {
            let fixed = AttentionStatic {
                causal: true,
                kv_source: KvSource::Paged { block_size: 16 },
                ..AttentionStatic::new(num_heads, num_kv_heads, head_dim, [dtype, kv, dtype], compute)
            };
            for [sequences, max_query, max_kv] in [[1, 1, 64], [1, 1, 1024], [4, 1, 512], [1, 128, 128]] {
                let call = AttentionDynamic { sequences, tokens: sequences * max_query, max_query, max_kv };
                grid.problem::<Attention>(fixed.clone(), call)?;
            }
        }
    }
    Ok(())
}

/// Operators that go over rows: norms, softmax, sums, the largest.
fn rows(grid: &mut Grid) -> Result {
    for dtype in [F32, BF16] {
        for (kind, bias) in [(NormKind::Rms, None), (NormKind::Layer, Some(dtype))] {
            for width in [64, 896, 4096] {
                let formula = NormFormula { kind, weight: Some(dtype), bias, ..NormFormula::default() };
                let fixed = NormStatic { width, formula, x: F32, out: dtype, ..NormStatic::default() };
                for rows in [1, 16, 256] {
                    grid.problem::<Norm>(fixed, NormDynamic { rows })?;
                }
            }
        }
        for [rows, width] in [[1, 64], [64, 64], [16, 1024], [256, 1024], [1, 32000]] {
            let fixed = SoftmaxStatic { x: dtype, out: dtype, ..SoftmaxStatic::default() };
            grid.problem::<Softmax>(fixed, SoftmaxDynamic { rows, width })?;
        }
        for function in [ReduceFunction::Sum, ReduceFunction::Max, ReduceFunction::ArgMax] {
            let output = if function == ReduceFunction::ArgMax { DType::I64 } else { dtype };
            for [rows, width] in [[1, 64], [1024, 64], [64, 1024], [16, 4096], [1, 151936]] {
                let fixed = ReduceStatic { function, input: dtype, output, dims: 1 };
                grid.problem::<Reduce>(fixed, ReduceDynamic { rows, width })?;
            }
        }
        for k in [8, 50] {
            for [rows, width] in [[1, 128], [16, 128], [1, 32000]] {
                grid.problem::<TopK>(TopKStatic { k, dtype, indices: DType::U32 }, TopKDynamic { rows, width })?;
            }
        }
    }
    Ok(())
}

/// Operators that go over elements.
fn elements(grid: &mut Grid) -> Result {
    const COUNTS: [usize; 3] = [1 << 10, 1 << 15, 1 << 20];
    for dtype in [F32, BF16] {
        for count in COUNTS {
            for function in [BinaryFunction::Add, BinaryFunction::Mul, BinaryFunction::Div] {
                let fixed = BinaryStatic { function, a: dtype, b: dtype, output: dtype };
                grid.problem::<Binary>(fixed, BinaryDynamic::new(count))?;
            }
            for function in [UnaryFunction::Exp, UnaryFunction::Sqrt, UnaryFunction::Neg] {
                grid.problem::<Unary>(UnaryStatic { function, input: dtype, output: dtype }, Elements(count))?;
            }
        }
        for (activation, gate) in [
            (Activation::Silu, Gate::Halves),
            (Activation::GeluTanh, Gate::None),
            (Activation::Gelu, Gate::None),
            (Activation::Silu, Gate::Tensor),
        ] {
            for [rows, width] in [[1, 4864], [16, 4864], [200, 1536]] {
                let fixed = ActivationStatic { activation, gate, x: dtype, out: dtype };
                grid.problem::<Activate>(fixed, ActivationDynamic { rows, width })?;
            }
        }
    }
    for (input, output) in [(F32, BF16), (BF16, F32), (F16, F32), (F32, F16), (F32, F32), (DType::I32, F32)] {
        for count in COUNTS {
            grid.problem::<Cast>(CastStatic { input, output }, Elements(count))?;
        }
    }
    Ok(())
}

/// What turns with positions, and what is looked up and put away.
fn positions(grid: &mut Grid) -> Result {
    for dtype in [F32, BF16] {
        for tokens in [1, 16, 256] {
            for style in [Style::Half, Style::Interleaved] {
                let fixed = RotaryStatic { head_dim: 64, rotary_dim: 64, style, x: dtype, out: dtype, in_place: false };
                grid.problem::<Rotary>(fixed, RotaryDynamic { tokens, heads: 16 })?;
            }
            for kv in [dtype, DType::I8] {
                let (num_kv_heads, head_dim, block_size) = (2, 64, 16);
                let fixed = KvAppendStatic { num_kv_heads, head_dim, source: dtype, kv, block_size, rotary: None };
                grid.problem::<KvAppend>(fixed, KvAppendDynamic { tokens })?;
            }
            for table in [TableKind::Strided(dtype), TableKind::Packed(format(dtype)?)] {
                let fixed = EmbeddingStatic { width: 896, vocab: 32000, table, out: dtype };
                grid.problem::<Embedding>(fixed, EmbeddingDynamic { tokens })?;
            }
        }
    }
    Ok(())
}
