//! Many questions in flight on one stream.

use std::collections::VecDeque;

use acequia_api::{
    acequia::v1::{CheckBatch, CheckBatchResult, CheckRequest, CheckResponse},
    wire::MAX_CHECKS,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{ClientError, Peer, Question};

/// Batches that may be unanswered on a stream: enough to fill a link of 100 ms with a batch every 2 ms. More
/// would only wait in queues.
pub const BATCHES_IN_FLIGHT_MAX: usize = 64;
/// Questions in one batch: a node refuses more.
pub const QUESTIONS_IN_BATCH_MAX: usize = MAX_CHECKS;

/// A stream of batches of questions, answered in their order.
///
/// Neither half waits for the other: send while there is room, read while something is in flight. Dropping the
/// stream closes it; what was sent may still be charged.
///
/// ```no_run
/// # use acequia_client::{CheckStream, ClientError, Question};
/// # async fn example(mut stream: CheckStream, batches: Vec<Vec<Question>>) -> Result<(), ClientError> {
/// for batch in batches {
///     if stream.is_full() && let Some(answers) = stream.next().await {
///         println!("{} answers", answers?.len());
///     }
///     stream.send(batch)?;
/// }
/// while let Some(answers) = stream.next().await {
///     println!("{} answers", answers?.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CheckStream {
    batches: mpsc::Sender<CheckBatch>,
    answers: Streaming<CheckBatchResult>,
    /// What is unanswered, the oldest first.
    in_flight: VecDeque<InFlight>,
    peer: Peer,
    is_ended: bool,
}

/// A batch that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    questions: usize,
    due: Instant,
}

/// Both ends of what a stream sends. There is always room in it for a batch that may be in flight.
pub(crate) fn batches() -> (mpsc::Sender<CheckBatch>, ReceiverStream<CheckBatch>) {
    let (sender, receiver) = mpsc::channel(BATCHES_IN_FLIGHT_MAX);
    (sender, ReceiverStream::new(receiver))
}

impl CheckStream {
    pub(crate) fn new(
        batches: mpsc::Sender<CheckBatch>,
        answers: Streaming<CheckBatchResult>,
        peer: Peer,
    ) -> Self {
        Self { batches, answers, in_flight: VecDeque::new(), peer, is_ended: false }
    }

    /// Asks at most [`QUESTIONS_IN_BATCH_MAX`] questions, which the node decides in one go, in their order.
    /// Never waits: look at [`CheckStream::is_full`] before.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there are too many questions, or [`BATCHES_IN_FLIGHT_MAX`] batches are
    /// unanswered. [`ClientError::Unreachable`] if the stream has ended: [`CheckStream::next`] says why. In
    /// either case nothing was sent.
    pub fn send(&mut self, questions: impl IntoIterator<Item = Question>) -> Result<(), ClientError> {
        if self.is_full() {
            let what = format!(
                "{BATCHES_IN_FLIGHT_MAX} batches are unanswered: read an answer before sending another"
            );
            return Err(ClientError::Refused { what });
        }
        // One more than may be, so that no more than that is ever held.
        let checks: Vec<_> =
            questions.into_iter().take(QUESTIONS_IN_BATCH_MAX + 1).map(CheckRequest::from).collect();
        if checks.len() > QUESTIONS_IN_BATCH_MAX {
            let what = format!("a batch holds at most {QUESTIONS_IN_BATCH_MAX} questions: send several");
            return Err(ClientError::Refused { what });
        }
        let sent = InFlight { questions: checks.len(), due: Instant::now() + self.peer.deadline };
        if self.is_ended || self.batches.try_send(CheckBatch { checks }).is_err() {
            return Err(self.peer.unreachable("the stream has ended: open another"));
        }
        self.in_flight.push_back(sent);
        Ok(())
    }

    /// The answers to the oldest batch in flight, one for each of its questions; nothing if none is in flight.
    /// The deadline counts from [`CheckStream::send`], so time behind earlier batches is in it. May be dropped
    /// while it waits: no answer is lost.
    ///
    /// # Errors
    /// After [`ClientError::Deadline`] the answer is still owed, and the next call waits for it again, for as
    /// long. Any other error ends the stream, and whatever was in flight with it.
    pub async fn next(&mut self) -> Option<Result<Vec<CheckResponse>, ClientError>> {
        let InFlight { questions, due } = *self.in_flight.front()?;
        let Ok(message) = timeout_at(due, self.answers.message()).await else {
            self.in_flight[0].due = Instant::now() + self.peer.deadline;
            return Some(Err(self.peer.late()));
        };
        let error = match message {
            Ok(Some(CheckBatchResult { results })) if results.len() == questions => {
                self.in_flight.pop_front();
                return Some(Ok(results));
            }
            Ok(Some(CheckBatchResult { results })) => {
                let answers = results.len();
                self.peer.unreachable(format!("it gave {answers} answers to {questions} questions"))
            }
            Ok(None) => self.peer.unreachable("it closed the stream"),
            Err(status) => self.peer.failed(&status),
        };
        self.is_ended = true;
        self.in_flight.clear();
        Some(Err(error))
    }

    /// How many batches are unanswered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether an answer must be read before another batch can be sent.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= BATCHES_IN_FLIGHT_MAX
    }
}
