//! An engine on a thread of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::request::Checks;
use super::{Engine, EngineStats, Event, Happening, Request, RequestId};
use crate::{Error, Result};

/// An engine that runs on a thread of its own, and takes requests from any other.
///
/// ```no_run
/// use sinew_models::{Engine, EngineHandle, EngineOptions, Happening, LanguageModel, LoadOptions, Request};
///
/// let model = LanguageModel::load("path/to/model", &LoadOptions { max_sequences: 8, ..LoadOptions::default() })?;
/// let prompt = model.encode("Once upon a time")?;
/// let handle = EngineHandle::start(Engine::new(model, EngineOptions::default()))?;
/// for event in handle.submit(Request::new(prompt))? {
///     if let Happening::Token { text, .. } = event.what {
///         print!("{text}");
///     }
/// }
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct EngineHandle {
    checks: Checks,
    most: usize,
    /// Requests that are submitted and not yet taken by the thread, at most so many.
    coming: Arc<AtomicUsize>,
    requests: Option<Sender<Submitted>>,
    next_id: AtomicU64,
    stats: Arc<Mutex<EngineStats>>,
    thread: Option<JoinHandle<Engine>>,
}

/// The events of one request, as they come; dropping it cancels the request.
#[derive(Debug)]
pub struct Answers {
    id: RequestId,
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
    /// Which of the answers have ended.
    ended: Vec<bool>,
}

/// A request on its way to the thread.
#[derive(Debug)]
struct Submitted {
    id: RequestId,
    request: Request,
    client: Client,
}

/// Who listens to a request.
#[derive(Debug)]
struct Client {
    events: Sender<Event>,
    cancelled: Arc<AtomicBool>,
    /// Answers that have not ended.
    left: usize,
}

impl EngineHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(engine: Engine) -> Result<Self> {
        let (checks, most, next_id) =
            (Checks::of(engine.model()), engine.max_waiting(), AtomicU64::new(engine.next_id().0));
        let ((requests, submitted), coming) = (channel(), Arc::new(AtomicUsize::new(0)));
        let stats = Arc::new(Mutex::new(engine.stats()));
        let server = Server { engine, coming: coming.clone(), clients: HashMap::new(), stats: stats.clone() };
        let thread = std::thread::Builder::new()
            .name("sinew-engine".to_owned())
            .spawn(move || server.serve(&submitted))
            .map_err(|error| Error::Engine(format!("no thread for an engine: {error}")))?;
        Ok(Self { checks, most, coming, requests: Some(requests), next_id, stats, thread: Some(thread) })
    }

    /// Takes a request, without waiting for the step that is under way.
    ///
    /// # Errors
    /// Those of [`Engine::submit`]; up to twice `max_waiting` requests wait here.
    pub fn submit(&self, request: Request) -> Result<Answers> {
        self.checks.check(&request)?;
        let (sender, events) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let client = Client { events: sender, cancelled: cancelled.clone(), left: request.samples };
        let ended_none = vec![false; request.samples];
        let Some(requests) = &self.requests else { return Err(ended()) };
        // Not a bounded channel, which has memory for all that could ever wait from its beginning on.
        let one_more = |coming: usize| (coming < self.most).then(|| coming + 1);
        if self.coming.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(Error::Busy { waiting: self.most });
        }
        requests.send(Submitted { id, request, client }).map_err(|_| ended())?;
        Ok(Answers { id, events, cancelled, ended: ended_none })
    }

    /// Counts after the latest step.
    pub fn stats(&self) -> EngineStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers what was submitted, and gives the engine back.
    ///
    /// # Errors
    /// The thread panicked.
    pub fn finish(mut self) -> Result<Engine> {
        self.requests = None;
        let thread = self.thread.take().ok_or_else(ended)?;
        thread.join().map_err(|_| Error::Engine("the thread of the engine panicked".to_owned()))
    }
}

/// Whoever drops the handle waits for what was submitted; who does not want that drops its [`Answers`] before.
impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there.
            let _ = thread.join();
        }
    }
}

fn ended() -> Error {
    Error::Engine("the engine has ended".to_owned())
}

impl Answers {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Ends the request; its answers finish as cancelled.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Iterator for Answers {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if let Ok(event) = self.events.recv() {
            if event.is_last()
                && let Some(ended) = self.ended.get_mut(event.sample)
            {
                *ended = true;
            }
            return Some(event);
        }
        // The thread is gone, with what it would have told.
        let sample = self.ended.iter().position(|ended| !ended)?;
        self.ended[sample] = true;
        Some(Event { request: self.id, sample, what: Happening::Failed(ended()) })
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// What the thread works with.
struct Server {
    engine: Engine,
    /// Requests that are submitted and not yet taken.
    coming: Arc<AtomicUsize>,
    clients: HashMap<RequestId, Client>,
    stats: Arc<Mutex<EngineStats>>,
}

impl Server {
    fn serve(mut self, submitted: &Receiver<Submitted>) -> Engine {
        let mut open = true;
        while open || !self.engine.is_idle() {
            if self.engine.is_idle() {
                match submitted.recv() {
                    Ok(request) => self.take(request),
                    Err(_) => open = false,
                }
            }
            // No more than may wait, also of those that do not: whoever is answered is not kept from it.
            for _ in 0..self.engine.max_waiting() {
                if self.engine.is_full() {
                    break;
                }
                match submitted.try_recv() {
                    Ok(request) => self.take(request),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        open = false;
                        break;
                    }
                }
            }
            for (&id, client) in &self.clients {
                if client.cancelled.load(Ordering::Relaxed) {
                    self.engine.cancel(id);
                }
            }
            self.step();
        }
        self.engine
    }

    fn take(&mut self, Submitted { id, request, client }: Submitted) {
        self.coming.fetch_sub(1, Ordering::Relaxed);
        match self.engine.submit_as(id, request) {
            Ok(()) => {
                self.clients.insert(id, client);
            }
            Err(error) => {
                let why = error.one_line();
                for sample in 0..client.left {
                    let what = Happening::Failed(Error::Engine(why.clone()));
                    // Whoever does not listen any more does not miss it.
                    let _ = client.events.send(Event { request: id, sample, what });
                }
            }
        }
    }

    fn step(&mut self) {
        for event in self.engine.step_or_end() {
            let Some(client) = self.clients.get_mut(&event.request) else { continue };
            let (id, last) = (event.request, event.is_last());
            client.left -= usize::from(last);
            let left = client.left;
            // Whoever does not listen any more has cancelled it.
            let _ = client.events.send(event);
            if left == 0 {
                self.clients.remove(&id);
            }
        }
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.stats();
    }
}
