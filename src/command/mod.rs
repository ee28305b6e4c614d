//! The command line: its subcommands, and errors in one line.

mod arguments;
mod bench;
mod chat;
mod demo;
mod devices;
mod embed;
mod explain;
mod generate;
mod input;
mod inspect;
mod interrupts;
mod logits;
mod model;
mod output;
mod plan;
mod quality;
mod quantize;
mod replay;
mod run;
mod sampling;
mod settings;
mod tune;
mod warnings;

use std::error::Error as StdError;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use sinew::models::one_line;

use self::arguments::Origins;
use self::interrupts::{INTERRUPTED_CODE, interrupted};
use self::model::Model;
use self::output::{complain, leaks};
use self::run::Run;

/// Tokens of a prompt where nothing says how many.
const PROMPT_TOKENS: usize = 512;

/// What a command returns: an error is printed with its causes, in one line.
type Outcome<T = ()> = Result<T, Box<dyn StdError>>;

/// Tensor operators for transformer inference. Without a command: the bundled model answers a few prompts.
#[derive(Debug, Parser)]
#[command(name = "sinew", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    origins: Origins,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate text or tokens.
    Generate(generate::Generate),
    /// Talk with a model.
    Chat(chat::Chat),
    /// Turn texts into vectors.
    Embed(embed::Embed),
    /// Write the logits of given tokens to a safetensors file.
    Logits(logits::Logits),
    /// Measure a model's speed and memory.
    Bench(bench::Bench),
    /// Run a trace of requests as they came, and measure how long each waited.
    Replay(replay::Replay),
    /// Write a trace of requests at random.
    Trace(replay::Trace),
    Quantize(quantize::Quantize),
    /// Print what quantizing a model's weights costs, and what activations in int8 do.
    Quality(quality::Quality),
    /// Time the kernels that may serve a model's shapes, and keep the times for the choice among them.
    Tune(tune::Tune),
    /// Show what a model's files hold, and what it would need.
    Inspect(inspect::Inspect),
    /// Show the memory that a model takes before it is read, what fits, and what would save how much.
    Plan(plan::Plan),
    /// List every setting, its value, and what decides it.
    Settings(settings::Settings),
    /// List the devices of this machine, or why there are none.
    Devices(devices::Devices),
    Explain(explain::Explain),
}

/// Runs the command and turns its outcome into an exit code.
pub fn main() -> ExitCode {
    let mut command = Cli::command();
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            if !error.use_stderr() {
                // Help and version are no errors.
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            // Of `explain` alone: every other command says itself what it lacks.
            if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                complain(&format!("error: {}; see --help", explain::MISSING));
                return ExitCode::from(2);
            }
            // The first paragraph says what is wrong; the usage behind it is a `--help` away.
            let text = error.render().to_string();
            let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            complain(&format!("{}; see --help", what.join(" ")));
            return ExitCode::from(2);
        }
    };
    warnings::show();
    let run = match cli.origins.resolve(&command, &matches) {
        Ok(resolved) => Run::new(resolved),
        Err(error) => {
            complain(&format!("error: {}", one_line(&*error)));
            return ExitCode::FAILURE;
        }
    };
    let outcome = match &cli.command {
        None => demo::run(&run),
        Some(Command::Generate(command)) => command.run(&run),
        Some(Command::Chat(command)) => command.run(&run),
        Some(Command::Embed(command)) => command.run(&run),
        Some(Command::Logits(command)) => command.run(&run),
        Some(Command::Bench(command)) => command.run(&run),
        Some(Command::Replay(command)) => command.run(&run),
        Some(Command::Trace(command)) => command.run(),
        Some(Command::Quantize(command)) => command.run(&run),
        Some(Command::Quality(command)) => command.run(&run),
        Some(Command::Tune(command)) => command.run(&run),
        Some(Command::Inspect(command)) => command.run(&run),
        Some(Command::Plan(command)) => command.run(&run),
        Some(Command::Settings(command)) => command.run(&run),
        Some(Command::Devices(command)) => command.run(&run),
        Some(Command::Explain(command)) => command.run(&run),
    };
    end(outcome)
}

/// Says what was not given back, and what went wrong.
fn end(outcome: Outcome) -> ExitCode {
    leaks().iter().for_each(|leak| complain(leak));
    match outcome {
        Ok(()) if interrupted() => ExitCode::from(INTERRUPTED_CODE),
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {}", one_line(&*error)));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use sinew::prelude::{Context, DType};

    use super::*;

    /// Asks the test below, run in a process of its own, for what it has to leave behind.
    const LEAK: &str = "SINEW_TEST_LEAK";

    #[test]
    fn what_is_not_given_back_is_said_as_the_command_ends() {
        if let Ok(tag) = std::env::var(LEAK) {
            let ctx = Context::cpu().expect("a context");
            let buffer = ctx.uninitialised_tagged("given back", DType::F32, &[64]).expect("memory");
            drop(buffer);
            if !tag.is_empty() {
                std::mem::forget(ctx.uninitialised_tagged(&tag, DType::F32, &[1 << 20]).expect("memory"));
            }
            drop(ctx);
            assert_eq!(end(Ok(())), ExitCode::SUCCESS);
            return;
        }
        let said = |tag: &str| {
            let mut child = Command::new(std::env::current_exe().expect("these tests"));
            child.args(["--exact", "command::tests::what_is_not_given_back_is_said_as_the_command_ends"]);
            let output = child.arg("--nocapture").env(LEAK, tag).output().expect("it runs");
            assert!(output.status.success(), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
            String::from_utf8(output.stderr).expect("the output is UTF-8")
        };
        let left = "warning: buffers of cpu are left: forgotten 4.0 MiB\n";
        assert_eq!(said("forgotten").contains(left), cfg!(debug_assertions));
        assert!(!said("").contains("are left"));
    }
}
