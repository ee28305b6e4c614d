//! Requests that are all there before the first is answered, some of which may be meant for another rotary embedding.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::result::Result as StdResult;

use super::request::Checks;
use super::{Engine, EngineOptions, Event, Request, RequestId};
use crate::language::LanguageModel;
use crate::{DecoderConfig, Error, Result};

/// Many requests that one model answers each as it would alone.
///
/// Where the rotary embedding depends on how long a sequence may become, a request is answered by that of its own prompt
/// and answer: [together](Engine) with those that [turn queries and keys alike](DecoderConfig::rotates_alike), for most
/// models all of them.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use sinew_models::engine::Many;
/// use sinew_models::{Error, Folder, Happening, LanguageModel, LoadOptions, Request};
///
/// let folder = Folder::new("path/to/model");
/// let mut many = Many::new(folder.config()?.as_decoder()?);
/// for prompt in [vec![1, 2, 3], vec![4; 9000]] {
///     many.add(Request::new(prompt))?;
/// }
/// let options = LoadOptions { context: Some(many.context()), max_sequences: 8, ..LoadOptions::default() };
/// let model = LanguageModel::load(folder.path(), &options)?;
/// many.check(&model).map_err(|(_, error)| error)?;
/// many.answer(model, &mut || ControlFlow::Continue(()), &mut |_, number, event| {
///     if let Happening::Token { text, .. } = &event.what {
///         println!("{number}: {text}");
///     }
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Many<'c> {
    config: &'c DecoderConfig,
    groups: Vec<Group>,
    count: usize,
    context: usize,
}

/// Requests that turn queries and keys as sequences of a context.
#[derive(Debug)]
struct Group {
    context: usize,
    /// Each with its number.
    requests: Vec<(usize, Request)>,
}

impl<'c> Many<'c> {
    /// None yet, for a model of this config.
    pub fn new(config: &'c DecoderConfig) -> Self {
        Self { config, groups: Vec::new(), count: 0, context: 1 }
    }

    /// Takes a request, and gives its number: they are counted from 0 on.
    ///
    /// # Errors
    /// [`Error::TooLong`] for a prompt and an answer that are longer than the model's positions, and
    /// [`Error::MaxLength`] for a prompt that leaves no room for an answer.
    pub fn add(&mut self, request: Request) -> Result<usize> {
        let options = request.options.for_prompt(request.prompt.len())?;
        let request = Request { options, ..request };
        let context = self.config.context_for(request.prompt.len(), request.options.max_new_tokens)?;
        let (number, config) = (self.count, self.config);
        match self.groups.iter_mut().find(|group| config.rotates_alike(group.context, context)) {
            Some(group) => group.requests.push((number, request)),
            None => self.groups.push(Group { context, requests: vec![(number, request)] }),
        }
        self.count += 1;
        self.context = self.context.max(context);
        Ok(number)
    }

    /// The context that a model has to be loaded for to answer all of them.
    pub fn context(&self) -> usize {
        self.context
    }

    /// All of them, by number.
    pub fn requests(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.groups.iter().flat_map(|group| &group.requests).map(|(number, request)| (*number, request))
    }

    /// Refuses what the model could not answer, however much room there is.
    ///
    /// # Errors
    /// The number of the first that [`Engine::check`] refuses, and why.
    pub fn check(&self, model: &LanguageModel) -> StdResult<(), (usize, Error)> {
        let checks = Checks::of(model);
        let wrong = self.requests().filter_map(|(number, request)| Some((number, checks.check(request).err()?)));
        wrong.min_by_key(|(number, _)| *number).map_or(Ok(()), Err)
    }

    /// Answers all of them, and gives the model back. `each` is told what happens to which; before every step `go_on`
    /// says whether there is to be one: answers that are not whole by then have no end.
    ///
    /// # Errors
    /// A request that the model cannot answer, a failed device, or what `each` returns.
    pub fn answer<E: From<Error>>(
        self,
        mut model: LanguageModel,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        each: &mut dyn FnMut(&LanguageModel, usize, &Event) -> StdResult<(), E>,
    ) -> StdResult<LanguageModel, E> {
        let turns_otherwise = self.groups.len() > 1;
        for Group { context, requests } in self.groups {
            if turns_otherwise {
                model.rotate_for(context)?;
            }
            let mut engine =
                Engine::new(model, EngineOptions { max_waiting: requests.len(), ..EngineOptions::default() });
            let mut numbers: HashMap<RequestId, usize> = HashMap::with_capacity(requests.len());
            for (number, request) in requests {
                numbers.insert(engine.submit(request)?, number);
            }
            while !engine.is_idle() {
                if go_on().is_break() {
                    return Ok(engine.into_model());
                }
                engine.step()?;
                for event in &engine.events {
                    if let Some(&number) = numbers.get(&event.request) {
                        each(&engine.model, number, event)?;
                    }
                }
            }
            model = engine.into_model();
        }
        Ok(model)
    }
}
