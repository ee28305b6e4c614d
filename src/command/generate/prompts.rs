//! `sinew generate --prompts-file`: many prompts at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::json;
use sinew::models::engine::Many;
use sinew::models::{Event, Finish, GenerateOptions, Happening, LanguageModel, LoadOptions, Logprobs, Request};

use super::{Generate, logprobs_json};
use crate::command::input::read_line;
use crate::command::interrupts::{catch_interrupts, interrupted};
use crate::command::output::report_memory;
use crate::command::{Outcome, Run};

/// The longest line of a file of prompts.
const MAX_LINE: u64 = 64 << 20;

/// An answer on its way.
#[derive(Default)]
struct Answer {
    prompt_tokens: usize,
    tokens: Vec<u32>,
    logprobs: Vec<Logprobs>,
    text: String,
    end: Option<Result<Finish, String>>,
}

impl Answer {
    fn hear(&mut self, event: &Event) {
        match &event.what {
            Happening::Token { token, text, logprobs } => {
                self.tokens.push(*token);
                self.text.push_str(text);
                self.logprobs.extend(logprobs.clone());
            }
            Happening::Finished { finish, text } => {
                self.text.push_str(text);
                self.end = Some(Ok(*finish));
            }
            Happening::Failed(error) => self.end = Some(Err(error.one_line())),
        }
    }
}

impl Generate {
    /// Answers the lines of a file, `max_new_tokens` where neither an option nor the checkpoint says how many.
    pub(super) fn run_file(&self, run: &Run, file: &Path, max_new_tokens: usize) -> Outcome {
        let folder = self.model.folder(run)?;
        let (decoder, config) = (folder.config()?.as_decoder()?, folder.generation_config_unchecked()?);
        let ctx = run.context()?;
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        let tokenizer = self.model.tokenizer(run)?;
        let unreadable = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", file.display());
        let mut lines = BufReader::new(File::open(file).map_err(|error| unreadable(&error))?);
        let of_line =
            |at: usize, error: &sinew::models::Error| format!("line {at} of {}: {}", file.display(), error.one_line());
        let mut at = 0;
        // The line of each.
        let (mut many, mut lines_of) = (Many::new(decoder), Vec::new());
        while let Some(line) = read_line(&mut lines, MAX_LINE).map_err(|error| unreadable(&error))? {
            at += 1;
            // Some editors begin files with a mark.
            let line = if at == 1 { line.trim_start_matches('\u{feff}') } else { &line };
            if line.is_empty() {
                continue;
            }
            // All lines are looked at before the first is answered: one that cannot be has its number.
            let of_line = |error: sinew::models::Error| of_line(at, &error);
            let prompt = tokenizer.encode_prompt(line, true, decoder.longest_context()).map_err(of_line)?;
            let options = self.sampling.options(config, prompt.len(), max_new_tokens).map_err(of_line)?;
            let options = GenerateOptions { logprobs: self.logprobs, ..options };
            many.add(Request { options, ..Request::new(prompt) }).map_err(of_line)?;
            lines_of.push(at);
        }
        let options = LoadOptions { context: Some(many.context()), ..run.serving_options(Some(folder), &ctx)? };
        let model = self.model.load(run, ctx, &checkpoint, &options, Some(tokenizer))?;
        many.check(&model).map_err(|(number, error)| of_line(lines_of[number], &error))?;
        catch_interrupts();
        let answer = |(number, request): (usize, &Request)| {
            (number, Answer { prompt_tokens: request.prompt.len(), ..Answer::default() })
        };
        let mut answers: BTreeMap<usize, Answer> = many.requests().map(answer).collect();
        let mut failed = 0;
        let mut go_on = || if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let model = many.answer(model, &mut go_on, &mut |model, number, event| -> Outcome {
            answers.get_mut(&number).into_iter().for_each(|answer| answer.hear(event));
            // In the order of the file.
            while let Some(first) = answers.first_entry().filter(|first| first.get().end.is_some()) {
                let (number, answer) = first.remove_entry();
                failed += usize::from(matches!(answer.end, Some(Err(_))));
                self.print(model, number, &answer)?;
            }
            Ok(())
        })?;
        // What was finished behind an answer that was cut off.
        for (&number, answer) in answers.iter().filter(|(_, answer)| answer.end.is_some()) {
            failed += usize::from(matches!(answer.end, Some(Err(_))));
            self.print(&model, number, answer)?;
        }
        if self.memory_report {
            report_memory(model.context());
        }
        match failed {
            0 => Ok(()),
            _ => Err(format!("{failed} prompts have no whole answer").into()),
        }
    }

    fn print(&self, model: &LanguageModel, number: usize, answer: &Answer) -> Outcome {
        let mut out = std::io::stdout().lock();
        if !self.json {
            writeln!(out, "--- {}", number + 1)?;
            writeln!(out, "{}", answer.text)?;
            if let Some(Err(error)) = &answer.end {
                writeln!(out, "[{error}]")?;
            }
            return Ok(out.flush()?);
        }
        let (finish, error) = match &answer.end {
            Some(Ok(finish)) => (Some(finish.to_string()), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let mut line = json!({
            "prompt": number,
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": finish,
            "prompt_tokens": answer.prompt_tokens,
        });
        if let Some(error) = error {
            line["error"] = json!(error);
        }
        if self.logprobs.is_some() {
            let each = answer.tokens.iter().zip(&answer.logprobs);
            line["logprobs"] = each.map(|(&token, logprobs)| logprobs_json(model, token, logprobs)).collect();
        }
        Ok(writeln!(out, "{line}")?)
    }
}
