//! Operators on elements, and those that pick them.

use clap::Args;
use sinew::kernels::cast::{Cast, CastStatic};
use sinew::kernels::elementwise::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic, Where,
    WhereStatic,
};
use sinew::kernels::embedding::{Embedding, EmbeddingDynamic, EmbeddingStatic, TableKind};
use sinew::kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew::ops::Context;
use sinew::tensor::DType;

use super::super::arguments::{WEIGHT, of_settings};
use super::super::{Outcome, Run};
use super::products::{format, precision, refuse_unpacked};
use super::{Describe, ProblemOf, parse};

/// How many, and of what.
#[derive(Debug, Args)]
struct Span {
    /// Elements of the result.
    #[arg(long, default_value = "65536", value_parser = parse::elements)]
    elements: usize,
    /// Dtype of the operands.
    #[arg(long, default_value = "f32", value_parser = parse::dtype)]
    dtype: DType,
}

/// A function of every element.
#[derive(Debug, Args)]
pub struct ExplainUnary {
    #[command(flatten)]
    span: Span,
    /// The function, as PyTorch calls it: exp, sqrt, neg …
    #[arg(long, default_value = "exp", value_parser = parse_unary)]
    function: UnaryFunction,
    /// Dtype of the result; that of the operand, or bool, if it is not given.
    #[arg(long, value_parser = parse::dtype)]
    out: Option<DType>,
}

fn parse_unary(text: &str) -> Result<UnaryFunction, String> {
    parse::one_of(text, UnaryFunction::ALL, UnaryFunction::name)
}

impl Describe for ExplainUnary {
    type Operator = Unary;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Unary>> {
        let (function, input) = (self.function, self.span.dtype);
        let usual = if function == UnaryFunction::Not { DType::Bool } else { input };
        let fixed = UnaryStatic { function, input, output: self.out.unwrap_or(usual) };
        Ok((fixed, Elements(self.span.elements)))
    }
}

/// A function or comparison of every two elements.
#[derive(Debug, Args)]
pub struct ExplainBinary {
    #[command(flatten)]
    span: Span,
    /// The function, as PyTorch calls it: add, mul, maximum, lt …
    #[arg(long, default_value = "add", value_parser = parse_binary)]
    function: BinaryFunction,
    /// Dtype of the second operand; that of the first if it is not given.
    #[arg(long, value_parser = parse::dtype)]
    other: Option<DType>,
    /// Dtype of the result; that of the first operand, or bool, if it is not given.
    #[arg(long, value_parser = parse::dtype)]
    out: Option<DType>,
}

fn parse_binary(text: &str) -> Result<BinaryFunction, String> {
    parse::one_of(text, BinaryFunction::ALL, BinaryFunction::name)
}

impl Describe for ExplainBinary {
    type Operator = Binary;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Binary>> {
        let (function, a) = (self.function, self.span.dtype);
        let output = self.out.unwrap_or(if function.compares() { DType::Bool } else { a });
        let fixed = BinaryStatic { function, a, b: self.other.unwrap_or(a), output };
        Ok((fixed, BinaryDynamic::new(self.span.elements)))
    }
}

/// Every element of one tensor or of another, by a mask.
#[derive(Debug, Args)]
pub struct ExplainWhere {
    #[command(flatten)]
    span: Span,
}

impl Describe for ExplainWhere {
    type Operator = Where;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Where>> {
        Ok((WhereStatic { dtype: self.span.dtype }, Elements(self.span.elements)))
    }
}

/// A copy, to another dtype or layout.
#[derive(Debug, Args)]
pub struct ExplainCast {
    #[command(flatten)]
    span: Span,
    /// Dtype of the result; the operand's, which is a copy, if it is not given.
    #[arg(long, value_parser = parse::dtype)]
    out: Option<DType>,
}

impl Describe for ExplainCast {
    type Operator = Cast;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Cast>> {
        let input = self.span.dtype;
        Ok((CastStatic { input, output: self.out.unwrap_or(input) }, Elements(self.span.elements)))
    }
}

/// Elements picked by indices along a dimension.
#[derive(Debug, Args)]
pub struct ExplainGather {
    #[command(flatten)]
    span: Span,
    /// The dimension.
    #[arg(long, default_value_t = 0, value_parser = parse::dimension)]
    dim: usize,
    /// Elements of the input along it.
    #[arg(long, default_value = "1024", value_parser = parse::size)]
    size: usize,
}

impl Describe for ExplainGather {
    type Operator = Gather;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Gather>> {
        let call = GatherDynamic { elements: self.span.elements, size: self.size };
        Ok((GatherStatic { dtype: self.span.dtype, dim: self.dim }, call))
    }
}

/// Rows of an embedding table, which is a packed weight or an ordinary tensor.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHT))]
pub struct ExplainEmbedding {
    /// Ids.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    tokens: usize,
    /// Rows of the table.
    #[arg(long, default_value = "32000", value_parser = parse::size)]
    vocab: usize,
    /// Values of a row.
    #[arg(long, default_value = "4096", value_parser = parse::size)]
    width: usize,
    /// The table is an ordinary tensor.
    #[arg(long)]
    unpacked: bool,
    /// Dtype of the result.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    out: DType,
}

impl Describe for ExplainEmbedding {
    type Operator = Embedding;

    fn problem(&self, run: &Run, ctx: &Context) -> Outcome<ProblemOf<Embedding>> {
        let precision = precision(run, ctx)?;
        refuse_unpacked(self.unpacked, run, &precision)?;
        let table = match format(run, &precision, ctx)? {
            Some(format) if !self.unpacked => TableKind::Packed(format),
            _ => TableKind::Strided(precision.weights),
        };
        let fixed = EmbeddingStatic { width: self.width, vocab: self.vocab, table, out: self.out };
        Ok((fixed, EmbeddingDynamic { tokens: self.tokens }))
    }
}
