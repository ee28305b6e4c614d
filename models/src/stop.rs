//! Text while it is generated: whole characters only, and nothing of a stop string.
//!
//! Tokens are not characters. A character may take several tokens, a token may end in the middle of one, and what a
//! token adds to the text may depend on the one before it. [`Detokenizer`] therefore decodes a short window of
//! tokens at each step and gives out what can no longer change. [`StopStrings`] then holds back what may be the
//! beginning of a stop string. [`TextStream`] is both, one after the other.
//!
//! Stop strings are searched in the text with special tokens, but the text is shown without them. A special token, such
//! as `<|im_end|>`, can therefore be a stop string, and no stop string matches across a hidden token.

use std::borrow::Borrow;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// What decoders write for bytes that are not, or not yet, a character.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// A character takes at most four tokens, one for each byte. Beyond this many without the end of one, the bytes are
/// wrong and are given out as U+FFFD, so that neither memory nor time grow with them.
const MAX_PENDING: usize = 64;

/// Decodes one token at a time into pieces of text that join to the whole.
///
/// ```no_run
/// # fn main() -> Result<(), sinew_models::Error> {
/// let folder = sinew_models::Folder::new("path/to/model");
/// let tokenizer = folder.tokenizer()?.expect("the model has a tokenizer");
/// let mut detokenizer = sinew_models::stop::Detokenizer::new(tokenizer.clone(), true);
/// for id in tokenizer.encode("naïve 🦀", false)? {
///     print!("{}", detokenizer.push(id)?);
/// }
/// println!("{}", detokenizer.finish()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Detokenizer<T> {
    tokenizer: T,
    skip_special: bool,
    /// The last tokens that ended a character, as context, and those that have not yet.
    window: Vec<u32>,
    /// How many of them are context.
    context: usize,
    /// How much of the window's text has been given out.
    given: String,
}

impl<T: Borrow<Tokenizer>> Detokenizer<T> {
    /// A detokenizer at the start of a text, which borrows the tokenizer or shares it. Special tokens give no text if
    /// `skip_special` is set.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, window: Vec::new(), context: 0, given: String::new() }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when decoding fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let tokenizer = self.tokenizer.borrow();
        if !tokenizer.contains(id) || (self.skip_special && tokenizer.is_special(id)) {
            return Ok(String::new());
        }
        self.window.push(id);
        let text = self.decode(0)?;
        let complete = text.trim_end_matches(REPLACEMENT);
        if complete.len() == text.len() {
            let new = self.after_given(text)?;
            self.slide()?;
            return Ok(new);
        }
        if self.window.len() - self.context > MAX_PENDING {
            let new = self.after_given(text)?;
            self.window.clear();
            self.context = 0;
            self.given.clear();
            return Ok(new);
        }
        // The end is incomplete, but what comes before it may be new: a token can end one character and begin another.
        match complete.strip_prefix(self.given.as_str()) {
            Some(new) => {
                let new = new.to_owned();
                self.given.push_str(&new);
                Ok(new)
            }
            // Byte tokens after a complete character can undo it until they are complete themselves.
            None => Ok(String::new()),
        }
    }

    /// What is left at the end of the text: U+FFFD for a character that was never completed.
    ///
    /// The detokenizer is then at the start of a new text.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when decoding fails.
    pub fn finish(&mut self) -> Result<String> {
        let rest = self.pending()?;
        self.window.clear();
        self.context = 0;
        self.given.clear();
        Ok(rest)
    }

    /// Returns the text that would be left if the text ended here.
    fn pending(&self) -> Result<String> {
        self.after_given(self.decode(0)?)
    }

    fn decode(&self, from: usize) -> Result<String> {
        self.tokenizer.borrow().decode(&self.window[from..], self.skip_special)
    }

    /// What `text`, the window's, has beyond what was given out.
    fn after_given(&self, mut text: String) -> Result<String> {
        if text.starts_with(self.given.as_str()) {
            return Ok(text.split_off(self.given.len()));
        }
        // The new tokens changed text that is already out. Wrong bytes do that: with byte tokens, one that fits
        // nowhere turns the characters before it into U+FFFD. What is out stays, and the new tokens stand alone.
        self.decode(self.context)
    }

    /// Forgets the context, and makes the tokens that have just been completed the new one.
    fn slide(&mut self) -> Result<()> {
        let given = self.decode(self.context)?;
        let shows = !given.is_empty() && !given.ends_with(REPLACEMENT);
        if !shows && self.window.len() <= MAX_PENDING {
            // Alone these give no context, such as a space that is dropped at the start of a text: keep what they
            // follow. It ends with the next token that shows.
            self.given = self.decode(0)?;
        } else {
            self.window.drain(..self.context);
            self.given = given;
        }
        self.context = self.window.len();
        Ok(())
    }
}

/// Cuts a stream of text at the first stop string.
///
/// ```
/// use sinew_models::StopStrings;
///
/// let mut stop = StopStrings::new(["\nUser:"])?;
/// assert_eq!(stop.push("Yes.\nUs").text, "Yes.");
/// assert_eq!(stop.push("ed up.\n").text, "\nUsed up.");
/// let step = stop.push("User: hi");
/// assert_eq!((step.text.as_str(), step.stopped_by), ("", Some(0)));
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the searched text is held back, because a stop string may begin there.
    held: String,
    /// These parts of `held` are not shown; they are in order.
    hidden: Vec<Range<usize>>,
    stopped_by: Option<usize>,
}

/// A piece of text, and whether it is the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// What can be shown now.
    pub text: String,
    /// The stop string, by its position in the list, that has ended the text. It is not part of any `text`.
    pub stopped_by: Option<usize>,
}

impl StopStrings {
    /// A stream that ends at any of `stops`. An empty list never ends it.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for an empty stop string, which would end every text at once.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        if let Some(at) = stops.iter().position(String::is_empty) {
            return Err(Error::Input(format!("stop string {at} is empty; leave it out")));
        }
        Ok(Self { stops, held: String::new(), hidden: Vec::new(), stopped_by: None })
    }

    /// Returns whether the list is empty, so that nothing ends a text.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Adds `text` to the stream, and returns what of it can be shown.
    ///
    /// The text ends at the stop string that is complete first; of two that are complete with the same character,
    /// at the longer. This does not depend on how the text is divided into pieces. After the end nothing is shown.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped_by.is_none() {
            self.held.push_str(text);
        }
        self.search()
    }

    /// Adds `text` that is searched but not shown, such as a special token, and returns the text before it that can be
    /// shown. A stop string may begin or end within it.
    ///
    /// ```
    /// use sinew_models::StopStrings;
    ///
    /// let mut stop = StopStrings::new(["<end>", "ab"])?;
    /// assert_eq!(stop.push("a").text, "");
    /// assert_eq!(stop.push_hidden("<pad>").text, "a");
    /// assert_eq!(stop.push("b").stopped_by, None);
    /// assert_eq!(stop.push_hidden("<end>").stopped_by, Some(0));
    /// # Ok::<(), sinew_models::Error>(())
    /// ```
    pub fn push_hidden(&mut self, text: &str) -> StopStep {
        if self.stopped_by.is_none() {
            let start = self.held.len();
            self.held.push_str(text);
            self.hidden.push(start..self.held.len());
        }
        self.search()
    }

    /// Returns the text that can be shown so far.
    fn search(&mut self) -> StopStep {
        if self.stopped_by.is_some() {
            return StopStep { text: String::new(), stopped_by: self.stopped_by };
        }
        let complete = self.stops.iter().enumerate().filter_map(|(i, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        if let Some((_, start, stop)) = complete.min() {
            self.stopped_by = Some(stop);
            let text = self.release(start);
            self.held.clear();
            self.hidden.clear();
            return StopStep { text, stopped_by: self.stopped_by };
        }
        let text = self.release(self.held.len() - self.longest_beginning());
        StopStep { text, stopped_by: None }
    }

    /// Removes the text before `end` from the held text and returns its shown part.
    fn release(&mut self, end: usize) -> String {
        let rest = self.held.split_off(end);
        let released = std::mem::replace(&mut self.held, rest);
        if self.hidden.is_empty() {
            return released;
        }
        let (mut shown, mut from) = (String::with_capacity(released.len()), 0);
        for part in &self.hidden {
            shown.push_str(&released[from..part.start.min(end)]);
            from = part.end.min(end);
        }
        shown.push_str(&released[from..]);
        self.hidden.retain(|part| part.end > end);
        for part in &mut self.hidden {
            *part = part.start.saturating_sub(end)..part.end - end;
        }
        shown
    }

    /// What was held back, now that the text has ended without a stop string.
    ///
    /// The stream is then at the start of a new text.
    pub fn finish(&mut self) -> String {
        self.stopped_by = None;
        self.release(self.held.len())
    }

    /// The length of the longest end of `held` with which a stop string begins.
    fn longest_beginning(&self) -> usize {
        let of = |stop: &String| {
            let longest = self.held.len().min(stop.len() - 1);
            // In bytes of a character boundary: `held` is cut here.
            (1..=longest)
                .rev()
                .find(|&n| stop.is_char_boundary(n) && self.held.as_bytes().ends_with(&stop.as_bytes()[..n]))
        };
        self.stops.iter().filter_map(of).max().unwrap_or(0)
    }
}

/// The text of a sequence while it is generated: tokens in, text that may be shown out.
///
/// Stop strings are searched in the text with special tokens, even if these are skipped.
#[derive(Debug, Clone)]
pub struct TextStream<T> {
    detokenizer: Detokenizer<T>,
    stops: StopStrings,
}

impl<T: Borrow<Tokenizer>> TextStream<T> {
    /// Creates a stream at the start of a text. Special tokens are not shown if `skip_special` is set.
    pub fn new(tokenizer: T, skip_special: bool, stops: StopStrings) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer, skip_special), stops }
    }

    /// The text that can be shown after `id`, and whether a stop string has ended it.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when decoding fails.
    pub fn push(&mut self, id: u32) -> Result<StopStep> {
        let tokenizer = self.detokenizer.tokenizer.borrow();
        let skipped = self.detokenizer.skip_special && !self.stops.is_empty() && tokenizer.is_special(id);
        match tokenizer.id_to_token(id).filter(|_| skipped) {
            Some(token) => self.push_skipped(&token),
            None => Ok(self.stops.push(&self.detokenizer.push(id)?)),
        }
    }

    /// Searches a special token that is not shown. A character that is incomplete before it may be completed after it.
    /// It is shown as U+FFFD if the token ends the text.
    fn push_skipped(&mut self, token: &str) -> Result<StopStep> {
        let incomplete = self.detokenizer.pending()?;
        let push_both = |stops: &mut StopStrings, push: fn(&mut StopStrings, &str) -> StopStep| {
            let before = push(stops, &incomplete);
            let mut step = stops.push_hidden(token);
            step.text.insert_str(0, &before.text);
            step
        };
        let mut ended = self.stops.clone();
        let step = push_both(&mut ended, StopStrings::push);
        if step.stopped_by.is_some() {
            self.stops = ended;
            return Ok(step);
        }
        Ok(push_both(&mut self.stops, StopStrings::push_hidden))
    }

    /// What is left when generation ends for another reason than a stop string. An incomplete character that becomes
    /// U+FFFD may still complete one.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when decoding fails.
    pub fn finish(&mut self) -> Result<StopStep> {
        let mut last = self.stops.push(&self.detokenizer.finish()?);
        last.text.push_str(&self.stops.finish());
        Ok(last)
    }

    /// Returns the remaining text when generation ends with the token `end`, which is not shown. The token may complete
    /// a stop string.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when decoding fails.
    pub fn finish_with(&mut self, end: u32) -> Result<StopStep> {
        let mut last = self.stops.push(&self.detokenizer.finish()?);
        if let Some(token) = self.detokenizer.tokenizer.borrow().id_to_token(end) {
            let step = self.stops.push_hidden(&token);
            last.text.push_str(&step.text);
            last.stopped_by = step.stopped_by;
        }
        last.text.push_str(&self.stops.finish());
        Ok(last)
    }
}

#[cfg(test)]
mod tests;
