//! `sinew quality`: what quantized weights, and activations in int8, cost a model.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use sinew::models::precision::{Activations, Precision, main_dtype};
use sinew::models::quality::{self, Divergence, Exact};
use sinew::models::{Checkpoint, EmbeddingModel, Error, LoadOptions, Planner, WeightOptions};
use sinew::ops::Context;

use super::arguments::{STEPPING, of_settings};
use super::input::{Lines, Tokens, parse_tokens};
use super::interrupts::{catch_interrupts, interrupted};
use super::{Model, Outcome, Run};

/// Rows of logits held on the device at once.
const MAX_LOGITS: usize = 64;
/// The texts that are compared where none are given, one on each line.
const TEXTS: &str = include_str!("quality.txt");

/// Print what quantizing a model's weights costs, and what activations in int8 do.
///
/// A model with weights of each format is compared with itself in the floats of its files, or for a quantized checkpoint
/// in those that its weights stand for: by the KL divergence of the next token's probabilities, and how often the
/// likeliest token is the same; embedding models by the cosine of what a text becomes. `--dtype` picks one format,
/// `--activations` one kind of activations. Both models are in memory at once, and the logits of one text, or of more where
/// there is room for them.
#[derive(Debug, Args)]
#[command(args = of_settings(STEPPING))]
pub struct Quality {
    #[command(flatten)]
    model: Model,
    /// A file with one text on each line of up to 1 MiB, instead of 48 sentences in English; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The tokens of one text, as 1,2,3.
    #[arg(long, value_parser = parse_tokens, conflicts_with = "file")]
    tokens: Option<Tokens>,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

/// A form of the weights, and of what products read.
struct Form {
    name: String,
    weights: WeightOptions,
}

/// What came of it.
struct Row {
    name: String,
    precision: Precision,
    measured: Measured,
}

enum Measured {
    Logits(Divergence),
    Vectors([f64; 2]),
}

impl Quality {
    pub fn run(&self, run: &Run) -> Outcome {
        let folder = self.model.folder(run)?;
        let texts = self.texts()?;
        let ctx = run.context()?;
        let checkpoint = folder.checkpoint(run.settings().load)?;
        let beside = main_dtype(&checkpoint)?;
        catch_interrupts();
        let rows = if folder.embeds()? {
            run.refuse_generating()?;
            self.vectors(run, &ctx, &checkpoint, texts)?
        } else {
            self.logits(run, &ctx, &checkpoint, texts)?
        };
        if interrupted() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            let rows: Vec<Value> = rows.iter().map(Row::as_json).collect();
            let summary = json!({ "beside": beside.to_string(), "rows": rows });
            writeln!(out, "{summary}")?;
            return Ok(());
        }
        let [first, second] = match rows.first().map(|row| &row.measured) {
            Some(Measured::Vectors(_)) => ["mean cosine", "least"],
            _ => ["KL divergence", "top-1"],
        };
        let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        writeln!(out, "beside the model in {beside}:")?;
        writeln!(out, "{:<width$}  bits   activations  {first:<13}  {second}", "weights")?;
        for row in &rows {
            let [bits, compute] = [format!("{:.2}", row.bits()), row.precision.main_compute().to_string()];
            writeln!(out, "{:<width$}  {bits:<5}  {compute:<11}  {}", row.name, row.measured.in_words())?;
        }
        Ok(())
    }

    /// The texts, unless tokens are given.
    fn texts(&self) -> Outcome<Vec<String>> {
        let Some(file) = &self.file else { return Ok(TEXTS.lines().map(str::to_owned).collect()) };
        let (mut texts, mut lines) = (Vec::new(), Lines::open(file)?);
        while let Some(line) = lines.next()? {
            texts.extend(Some(line).filter(|line| !line.trim().is_empty()));
        }
        if texts.is_empty() { Err(format!("{} has no texts", file.display()).into()) } else { Ok(texts) }
    }

    fn logits(&self, run: &Run, ctx: &Arc<Context>, checkpoint: &Checkpoint, texts: Vec<String>) -> Outcome<Vec<Row>> {
        let folder = self.model.folder(run)?;
        let config = folder.config()?;
        let texts = match &self.tokens {
            Some(Tokens(tokens)) => vec![tokens.clone()],
            None => {
                let tokenizer = self.model.tokenizer(run)?;
                texts.iter().map(|text| tokenizer.encode(text, true)).collect::<Result<Vec<_>, _>>()?
            }
        };
        for text in &texts {
            config.check_tokens(text)?;
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        let context = config.as_decoder()?.context_for(longest, 0)?;
        let options = run.load_options(Some(folder), ctx)?;
        let options = LoadOptions { max_logits: MAX_LOGITS, context: Some(context), ..options };
        let load = |weights| {
            let options = LoadOptions { weights, ..options.clone() };
            self.model.load(run, ctx.clone(), checkpoint, &options, None)
        };
        let mut exact = Exact::new(load(exact(&options.weights, checkpoint)?)?, &texts);
        let go_on = &mut || if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let mut rows = Vec::new();
        for Form { name, weights } in
            forms(&options.weights, checkpoint, &Planner::with(ctx, folder, checkpoint)?, true)?
        {
            if interrupted() {
                break;
            }
            let mut other = load(weights)?;
            let measured = match exact.divergence(&mut other, go_on) {
                Err(Error::Cancelled) if interrupted() => break,
                measured => Measured::Logits(measured?),
            };
            rows.push(Row { name, precision: other.decoder().precision(), measured });
        }
        Ok(rows)
    }

    fn vectors(&self, run: &Run, ctx: &Arc<Context>, checkpoint: &Checkpoint, texts: Vec<String>) -> Outcome<Vec<Row>> {
        let folder = self.model.folder(run)?;
        let given = run.weight_options(Some(folder), ctx)?;
        let embedded = |weights: WeightOptions| -> Outcome<_> {
            let mut model = EmbeddingModel::load_on(ctx.clone(), folder, &weights, &mut |_, _| {})?;
            let vectors = match &self.tokens {
                Some(Tokens(tokens)) => model.embed_tokens(std::slice::from_ref(tokens))?,
                None => model.embed(&texts)?,
            };
            Ok((model.precision(), vectors))
        };
        let (_, exact) = embedded(exact(&given, checkpoint)?)?;
        let mut rows = Vec::new();
        for Form { name, weights } in forms(&given, checkpoint, &Planner::with(ctx, folder, checkpoint)?, false)? {
            if interrupted() {
                break;
            }
            let (precision, vectors) = embedded(weights)?;
            rows.push(Row { name, precision, measured: Measured::Vectors(quality::cosines(&exact, &vectors)) });
        }
        Ok(rows)
    }
}

/// Weights in the floats that most of a checkpoint has.
fn exact(given: &WeightOptions, checkpoint: &Checkpoint) -> Outcome<WeightOptions> {
    let dtype = Some(main_dtype(checkpoint)?);
    Ok(WeightOptions { dtype, quantize: None, activations: None, ..*given })
}

/// What is compared with them: what settings ask for, or what a checkpoint has quantized, or else every format; without
/// a head none that keeps it.
fn forms(given: &WeightOptions, checkpoint: &Checkpoint, planner: &Planner<'_>, has_head: bool) -> Outcome<Vec<Form>> {
    let weights: Vec<(String, WeightOptions)> = match (given.quantize, given.dtype, checkpoint.quantization()) {
        (Some(how), ..) => vec![(quality::name(&how), *given)],
        (None, Some(dtype), _) => vec![(dtype.to_string(), *given)],
        (None, None, Some(quantization)) => vec![(quantization.to_string(), *given)],
        (None, None, None) => {
            let quantized = |how| (quality::name(&how), WeightOptions { quantize: Some(how), ..*given });
            quality::formats()?.into_iter().filter(|how| has_head || how.head).map(quantized).collect()
        }
    };
    let mut forms = Vec::new();
    for (name, weights) in weights {
        forms.push(Form { name: name.clone(), weights });
        if weights.activations.is_none() {
            let weights = WeightOptions { activations: Some(Activations::Int8), ..weights };
            if planner.why_untaken(&weights)?.is_none() {
                forms.push(Form { name, weights });
            }
        }
    }
    Ok(forms)
}

impl Row {
    fn bits(&self) -> f64 {
        quality::bits(self.precision.main_encoding())
    }

    fn as_json(&self) -> Value {
        let mut row = json!({
            "weights": self.name,
            "bits": self.bits(),
            "activations": self.precision.main_compute().to_string(),
        });
        match &self.measured {
            Measured::Logits(divergence) => {
                row["kl_divergence"] = json!(divergence.mean());
                row["top1_agreement"] = json!(divergence.agreement());
            }
            Measured::Vectors([mean, least]) => {
                row["mean_cosine"] = json!(mean);
                row["least_cosine"] = json!(least);
            }
        }
        row
    }
}

impl Measured {
    fn in_words(&self) -> String {
        match self {
            Self::Logits(divergence) => {
                format!("{:<13.1e}  {:.1} %", divergence.mean(), 100.0 * divergence.agreement())
            }
            Self::Vectors([mean, least]) => format!("{mean:<13.5}  {least:.5}"),
        }
    }
}
