//! `sinew chat`.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use sinew::models::{
    ChatTemplate, Conversation, Error, Finish, Generation, GenerationConfig, LanguageModel, Session, one_line,
};

use super::arguments::{STEPPING, of_settings};
use super::input::read_line;
use super::interrupts::{await_interrupts, interrupted};
use super::output::{complain, megabytes, peak_rss_bytes, rate, rate_text};
use super::sampling::Sampling;
use super::{Model, Outcome, Run};

const HELP: &str = "\
/reset  forget the conversation
/stats  tokens, speed and memory so far
/quit   leave, as does the end of the input
/help   this list
Ctrl-C ends an answer.";

/// The longest line that is read as one message.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// Talk with a model: a line of input is a message, and /help lists what else there is.
#[derive(Debug, Args)]
#[command(args = of_settings(&["context"]), args = of_settings(STEPPING))]
pub struct Chat {
    #[command(flatten)]
    model: Model,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
}

/// A conversation under way.
struct Talk<'a> {
    command: &'a Chat,
    template: &'a ChatTemplate,
    config: &'a GenerationConfig,
    model: LanguageModel,
    session: Session,
    conversation: Conversation,
    total: Total,
}

/// What all answers together took.
#[derive(Default)]
struct Total {
    answers: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    prefill: Duration,
    decode: Duration,
}

impl Chat {
    pub fn run(&self, run: &Run) -> Outcome {
        // Before anything is loaded.
        let folder = self.model.folder(run)?;
        self.sampling.check_vocabulary(folder.config()?.as_decoder()?.vocab_size)?;
        let Some(template) = folder.chat_template()? else {
            let model = self.model.name.display();
            return Err(format!("{model} has no chat template, neither as a file nor in tokenizer_config.json").into());
        };
        let config = folder.generation_config_unchecked()?;
        self.sampling.check(config)?;
        // A first turn, for a template that no turn gets through.
        template.render(&self.beginning().with("user", "Hello!"))?;
        let ctx = run.context()?;
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        let tokenizer = self.model.tokenizer(run)?;
        let options = run.load_options(Some(folder), &ctx)?;
        let model = self.model.load(run, ctx, &checkpoint, &options, Some(tokenizer))?;
        let session = model.session();
        let (conversation, total) = (self.beginning(), Total::default());
        let mut talk = Talk { command: self, template, config, model, session, conversation, total };

        let by_hand = std::io::stdin().is_terminal();
        loop {
            await_interrupts(false);
            if by_hand {
                // On the terminal and not in the output: the output is the answers.
                let _ = write!(std::io::stderr(), "> ").and_then(|()| std::io::stderr().flush());
            }
            let line = read_line(&mut std::io::stdin().lock(), MAX_LINE_BYTES);
            let Some(line) = line.map_err(|error| format!("cannot read the input: {error}"))? else { break };
            match line.trim() {
                "" => {}
                "/quit" => break,
                "/help" => println(HELP)?,
                "/stats" => println(&talk.stats())?,
                "/reset" => {
                    talk.conversation = self.beginning();
                    talk.session = talk.model.session();
                }
                command if command.starts_with('/') => {
                    complain(&format!("error: there is no command `{command}`; /help lists those there are"));
                }
                _ => match talk.answer(&line) {
                    Ok(()) => {}
                    // The conversation is as before, so that one can go on. A program that writes to a pipe would not know.
                    Err(error) if by_hand => complain(&format!("error: {}", one_line(&*error))),
                    Err(error) => return Err(error),
                },
            }
        }
        await_interrupts(true);
        Ok(())
    }

    fn beginning(&self) -> Conversation {
        let empty = Conversation::default();
        match &self.system {
            Some(system) => empty.with("system", system),
            None => empty,
        }
    }
}

impl Talk<'_> {
    /// Prints the answer to a message. Without one, the message is not part of the conversation.
    fn answer(&mut self, message: &str) -> Outcome {
        let mut conversation = self.conversation.clone().with("user", message);
        let text = self.template.render(&conversation)?;
        // The template writes the special tokens itself.
        let context = self.model.decoder().limits().context;
        let too_long = |error| match error {
            Error::TooLong { .. } | Error::MaxLength { .. } => format!("{error}: /reset begins a new one").into(),
            error => Box::<dyn std::error::Error>::from(error),
        };
        let prompt = self.model.tokenizer()?.encode_prompt(&text, false, context).map_err(too_long)?;
        let options = self.command.sampling.options(self.config, prompt.len(), context).map_err(too_long)?;
        await_interrupts(true);
        let mut out = std::io::stdout().lock();
        let mut unwritten = None;
        let answer = self.model.generate_in(&mut self.session, &prompt, &options, &mut |text| {
            unwritten = write!(out, "{text}").and_then(|()| out.flush()).err();
            if unwritten.is_some() || interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = unwritten {
            return Err(error.into());
        }
        writeln!(out)?;
        if answer.finish == Finish::Length && answer.tokens.len() < options.max_new_tokens {
            complain(&format!("the context of {context} tokens is full: the answer is cut, /reset begins a new one"));
        }
        self.total.add(&answer);
        conversation.push("assistant", &answer.text);
        self.conversation = conversation;
        Ok(())
    }

    fn stats(&self) -> String {
        let total = &self.total;
        let run = total.prompt_tokens - total.cached_tokens;
        format!(
            "{} answers; context {} of {} tokens\nprompts {} tokens, {} of them from the cache, {} tokens/s\n\
             answers {} tokens, {} tokens/s\npeak memory {}",
            total.answers,
            self.session.tokens().len(),
            self.model.decoder().limits().context,
            total.prompt_tokens,
            total.cached_tokens,
            rate_text(rate(run, total.prefill)),
            total.tokens,
            // The first token of each answer is its prompt's.
            rate_text(rate(total.tokens.saturating_sub(total.answers), total.decode)),
            megabytes(peak_rss_bytes()),
        )
    }
}

impl Total {
    fn add(&mut self, answer: &Generation) {
        self.answers += 1;
        self.prompt_tokens += answer.prompt_tokens;
        self.cached_tokens += answer.cached_tokens;
        self.tokens += answer.tokens.len();
        self.prefill += answer.prefill;
        self.decode += answer.decode;
    }
}

fn println(text: &str) -> Outcome {
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}
