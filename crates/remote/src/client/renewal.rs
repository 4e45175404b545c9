//! Credentials that a server may refuse at any time: logins are read again, by one reader for all, and a server that
//! refuses the new ones as well is left alone for a while.

use crate::error::Error;
use crate::retry::Failure;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// Time between two looks at a login that was refused.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time before a login that was refused is sent again as it is. It doubles with each refusal.
const PAUSE_FIRST: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time for which readers wait for another login, if an earlier one was accepted: passwords change on the server before
/// they do on its clients.
const GRACE: Duration = Duration::from_secs(10);

/// Credentials made of a login `L`, as requests carry them: `C`.
pub(crate) struct Renewal<L, C> {
    state: Mutex<State<L, C>>,
    /// Held while credentials are made, and until the server has answered the first request with them.
    trial: Arc<tokio::sync::Mutex<()>>,
}

struct State<L, C> {
    /// Login of `current`.
    login: Option<L>,
    current: Option<C>,
    /// Number of `current`.
    generation: u64,
    /// True if the server has accepted `current`.
    is_accepted: bool,
    /// True if the server has accepted a login.
    was_accepted: bool,
    refused: Option<Refused<L>>,
}

/// Login that the server refuses.
struct Refused<L> {
    login: Option<L>,
    error: Error,
    /// Time of the first of several refusals in a row.
    since: Instant,
    looked: Instant,
    /// Time before which the same login is not sent.
    next: Instant,
    pause: Duration,
}

/// Right to send one request with the credentials that come with it, if any.
pub(crate) struct Pass {
    /// Number of the credentials, from 1. 0 without credentials.
    generation: u64,
    /// Held by the only request with credentials that are not accepted yet, or before the first answer.
    _trial: Option<OwnedMutexGuard<()>>,
}

impl Pass {
    /// Right to send the only request before the first answer of a server.
    pub(crate) fn without_credentials(only: OwnedMutexGuard<()>) -> Self {
        Self {
            generation: 0,
            _trial: Some(only),
        }
    }

    /// True for a request with credentials.
    pub(crate) fn has_credentials(&self) -> bool {
        self.generation > 0
    }
}

impl<L> Refused<L> {
    fn failure(&self, was_accepted: bool) -> Failure {
        if !was_accepted || self.since.elapsed() >= GRACE {
            return self.error.clone().into();
        }
        Failure::Transient {
            what: self.error.what().to_owned(),
            pause: Some(POLL_INTERVAL / 2),
            is_unknown: false,
            is_outage: false,
        }
    }
}

impl<L: Clone + PartialEq, C: Clone> Renewal<L, C> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                login: None,
                current: None,
                generation: 0,
                is_accepted: false,
                was_accepted: false,
                refused: None,
            }),
            trial: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<L, C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Credentials for the next request: those of the last one, or new ones. `read`: reads the login. `make`: makes
    /// credentials of a login, for which it may ask a token service.
    ///
    /// # Errors
    /// The refusal of a login that is still the same.
    pub(crate) async fn get<M: Future<Output = Result<C, Failure>>>(
        &self,
        read: impl Future<Output = Result<L, Failure>>,
        make: impl FnOnce(L) -> M,
    ) -> Result<(C, Pass), Failure> {
        if let Some(accepted) = self.accepted_credentials() {
            return Ok(accepted);
        }
        let trial = Arc::clone(&self.trial).lock_owned().await;
        if let Some(accepted) = self.accepted_credentials() {
            return Ok(accepted);
        }
        let was_accepted = {
            let state = self.state();
            // Left by a request that was given up.
            if let Some(credentials) = &state.current {
                let pass = Pass {
                    generation: state.generation,
                    _trial: Some(trial),
                };
                return Ok((credentials.clone(), pass));
            }
            let refused = state.refused.as_ref();
            if let Some(refused) =
                refused.filter(|refused| refused.looked.elapsed() < POLL_INTERVAL)
            {
                return Err(refused.failure(state.was_accepted));
            }
            state.was_accepted
        };
        let login = match read.await {
            Ok(login) => login,
            Err(Failure::Final(e)) => return Err(self.refuse(None, e)),
            Err(e) => return Err(e),
        };
        if let Some(refused) = &mut self.state().refused {
            refused.looked = Instant::now();
            if refused.login.as_ref() == Some(&login) && refused.next > refused.looked {
                return Err(refused.failure(was_accepted));
            }
        }
        let credentials = match make(login.clone()).await {
            Ok(credentials) => credentials,
            Err(Failure::Final(e)) => return Err(self.refuse(Some(login), e)),
            Err(e) => return Err(e),
        };
        let mut state = self.state();
        state.login = Some(login);
        state.current = Some(credentials.clone());
        state.generation += 1;
        state.is_accepted = false;
        let pass = Pass {
            generation: state.generation,
            _trial: Some(trial),
        };
        Ok((credentials, pass))
    }

    fn accepted_credentials(&self) -> Option<(C, Pass)> {
        let state = self.state();
        let credentials = state.current.clone().filter(|_| state.is_accepted)?;
        let pass = Pass {
            generation: state.generation,
            _trial: None,
        };
        Some((credentials, pass))
    }

    fn refuse(&self, login: Option<L>, error: Error) -> Failure {
        let mut state = self.state();
        let was_accepted = state.was_accepted;
        let now = Instant::now();
        let before = state.refused.take();
        let is_first = before.is_none();
        let same = before.as_ref().filter(|before| before.login == login);
        let pause = same.map_or(PAUSE_FIRST, |same| (same.pause * 2).min(PAUSE_MAX));
        // The login may have changed since it was read: it is looked at once more without a pause.
        let looked = now.checked_sub(POLL_INTERVAL).filter(|_| is_first);
        let refused = state.refused.insert(Refused {
            login,
            error,
            since: before.map_or(now, |before| before.since),
            looked: looked.unwrap_or(now),
            next: now + pause,
            pause,
        });
        match is_first {
            true => Failure::Transient {
                what: refused.error.what().to_owned(),
                pause: Some(Duration::ZERO),
                is_unknown: false,
                is_outage: false,
            },
            false => refused.failure(was_accepted),
        }
    }

    /// Notes that the server accepts credentials.
    pub(crate) fn accepted(&self, used: &Pass) {
        let mut state = self.state();
        if state.generation == used.generation && state.current.is_some() {
            state.is_accepted = true;
            state.was_accepted = true;
            state.refused = None;
        }
    }

    /// Notes that the server refuses credentials. The next request gets others. `error`: refusal of the login, if it is one.
    pub(crate) fn refused(&self, used: &Pass, error: Option<Error>) {
        let mut state = self.state();
        // Another reader may have noted it.
        if state.generation != used.generation || state.current.take().is_none() {
            return;
        }
        let (login, was_accepted) = (state.login.take(), state.is_accepted);
        drop(state);
        // Credentials that were accepted before have expired: the login itself may be good.
        if let Some(error) = error.filter(|_| !was_accepted) {
            self.refuse(login, error);
        }
    }
}
