//! Connections that are opened before there are requests for them.
//!
//! A client connects when it sends a request. To have connections earlier, another client with the same settings sends requests
//! that end once they are connected: their connections are kept here, and nothing is sent over them. The next request of the
//! first client takes one instead of connecting.

use reqwest::Url;
use std::any::Any;
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower_layer::Layer;
use tower_service::Service;

/// Number of connections that are opened early: with that of the first answer, one for each of the first ranges.
const COUNT: usize = 3;

/// Time that a connection is kept for a request.
const KEPT: Duration = Duration::from_secs(5);

type BoxError = Box<dyn Error + Send + Sync>;

/// Connection, of a type that the client does not name.
type Connection = Box<dyn Any + Send>;

/// Client of one server, with connections that were opened early.
pub(super) struct Home {
    url: Url,
    pub(super) client: reqwest::Client,
}

impl Home {
    /// Makes a client for the server of `url`, and starts to open connections to it. `build` makes a client with a layer around
    /// its connector.
    pub(super) fn open(
        url: &Url,
        build: impl Fn(SpareLayer) -> Result<reqwest::Client, String>,
    ) -> Result<Self, String> {
        let kept = Arc::new(Kept::default());
        let layer = |keeps| SpareLayer {
            kept: Arc::clone(&kept),
            keeps,
        };
        let client = build(layer(false))?;
        let early = build(layer(true))?;
        for _ in 0..COUNT {
            // Ends with an error once there is a connection, or none.
            let request = early.head(url.clone()).send();
            tokio::spawn(async move { drop(request.await) });
        }
        Ok(Self {
            url: url.clone(),
            client,
        })
    }

    /// True for a URL of this server.
    pub(super) fn serves(&self, url: &Url) -> bool {
        self.url.origin() == url.origin()
    }
}

/// Connections without requests, all of them to one server, and the times at which they were opened.
#[derive(Default)]
struct Kept(Mutex<Vec<(Instant, Connection)>>);

impl Kept {
    fn connections(&self) -> MutexGuard<'_, Vec<(Instant, Connection)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take<C: 'static>(&self) -> Option<C> {
        let mut connections = self.connections();
        connections.retain(|(opened, _)| opened.elapsed() < KEPT);
        let (_, connection) = connections.pop()?;
        connection.downcast().ok().map(|connection| *connection)
    }
}

/// Layer around the connector of a client.
#[derive(Clone)]
pub(super) struct SpareLayer {
    kept: Arc<Kept>,
    /// True if connections are kept, rather than used.
    keeps: bool,
}

impl<S> Layer<S> for SpareLayer {
    type Service = SpareConnector<S>;

    fn layer(&self, inner: S) -> SpareConnector<S> {
        SpareConnector {
            inner,
            layer: self.clone(),
        }
    }
}

/// Connector that keeps connections, or takes those that were kept.
#[derive(Clone)]
pub(super) struct SpareConnector<S> {
    inner: S,
    layer: SpareLayer,
}

impl<S, R> Service<R> for SpareConnector<S>
where
    S: Service<R, Error = BoxError>,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let kept = Arc::clone(&self.layer.kept);
        if !self.layer.keeps {
            if let Some(connection) = kept.take() {
                return Box::pin(async { Ok(connection) });
            }
            return Box::pin(self.inner.call(request));
        }
        let connecting = self.inner.call(request);
        Box::pin(async move {
            let connection: Connection = Box::new(connecting.await?);
            kept.connections().push((Instant::now(), connection));
            Err("the connection is kept".into())
        })
    }
}
