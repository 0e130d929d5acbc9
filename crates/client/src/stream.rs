//! A stream with many questions in flight.

use std::{collections::VecDeque, sync::Arc};

use acequia_api::{
    acequia::v1::{CheckBatch, CheckBatchResult, CheckRequest, CheckResponse},
    wire::{MAX_CHECKS, REST_UNDECIDED},
};
use bytes::{BufMut as _, Bytes};
use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming,
    client::Grpc,
    codec::{Codec, EncodeBuf, Encoder},
};
use tonic_prost::ProstCodec;

use crate::{
    AskedNode, ClientError, Question,
    connection::{Connection, Current},
    settings::SETTINGS,
};

/// The most unanswered batches on a stream: enough to fill a link of 100 ms with a batch every 2 ms. More
/// batches would only wait in queues.
pub const BATCHES_IN_FLIGHT_MAX: usize = 64;
/// The most questions in one batch. A node refuses more.
pub const QUESTIONS_IN_BATCH_MAX: usize = MAX_CHECKS;

/// A stream of batches of questions. The answers come in the order of the batches.
///
/// Neither half waits for the other: send while there is room, and read while a batch is in flight.
/// Dropping the stream closes it. Batches that were sent may still be charged.
///
/// A node that stops, or whose connection is old, ends the stream after the answers to all that it decided.
/// The unanswered questions are asked again on another connection, unseen by the caller.
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
    connection: Arc<Connection>,
    /// The connection that carries the stream.
    current: Arc<Current>,
    batches: mpsc::Sender<Bytes>,
    answers: Streaming<CheckBatchResult>,
    /// The unanswered batches, oldest first.
    in_flight: VecDeque<InFlight>,
    /// The number of moves in a row without an answer.
    moves: u32,
    /// Whether the node has ended the stream and decided none of the unanswered questions.
    has_rest_undecided: bool,
    peer: AskedNode,
    is_ended: bool,
}

/// A batch without an answer yet.
#[derive(Clone, Debug)]
struct InFlight {
    questions: usize,
    /// The encoded batch.
    batch: Bytes,
    due: Instant,
}

/// A codec for batches that are already encoded, so that they can be sent again.
#[derive(Clone, Copy, Debug, Default)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = CheckBatchResult;
    type Encoder = Self;
    type Decoder = <ProstCodec<CheckBatch, CheckBatchResult> as Codec>::Decoder;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<CheckBatch, CheckBatchResult>::default().decoder()
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, batch: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(batch);
        Ok(())
    }
}

impl CheckStream {
    pub(crate) async fn open(connection: Arc<Connection>, peer: AskedNode) -> Result<Self, ClientError> {
        let current = connection.current();
        let (batches, answers) = peer.wait(begin(&current)).await?;
        let in_flight = VecDeque::new();
        Ok(Self {
            connection,
            current,
            batches,
            answers,
            in_flight,
            moves: 0,
            has_rest_undecided: false,
            peer,
            is_ended: false,
        })
    }

    /// Asks at most [`QUESTIONS_IN_BATCH_MAX`] questions. The node decides them together, in their order.
    /// Never waits: check [`CheckStream::is_full`] before.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there are too many questions, or if [`BATCHES_IN_FLIGHT_MAX`] batches
    /// are unanswered. [`ClientError::Unreachable`] if the stream has ended: [`CheckStream::next`] has told
    /// the reason. In either case nothing was sent.
    pub fn send(&mut self, questions: impl IntoIterator<Item = Question>) -> Result<(), ClientError> {
        if self.is_full() {
            let what = format!(
                "{BATCHES_IN_FLIGHT_MAX} batches are unanswered: read an answer before sending another"
            );
            return Err(ClientError::Refused { what });
        }
        // Takes at most one question more than allowed, so that never more than that are held.
        let checks: Vec<_> =
            questions.into_iter().take(QUESTIONS_IN_BATCH_MAX + 1).map(CheckRequest::from).collect();
        if checks.len() > QUESTIONS_IN_BATCH_MAX {
            let what = format!("a batch holds at most {QUESTIONS_IN_BATCH_MAX} questions: send several");
            return Err(ClientError::Refused { what });
        }
        if self.is_ended {
            return Err(self.peer.unreachable("the stream has ended: open another"));
        }
        let (questions, due) = (checks.len(), Instant::now() + self.peer.deadline);
        let batch = Bytes::from(CheckBatch { checks }.encode_to_vec());
        // The channel has room. If no connection reads it any more, the next read of an answer finds out
        // why.
        let _ = self.batches.try_send(batch.clone());
        self.in_flight.push_back(InFlight { questions, batch, due });
        Ok(())
    }

    /// The answers to the oldest batch in flight, one for each of its questions. `None` if no batch is in
    /// flight. The deadline counts from [`CheckStream::send`], and includes the time behind earlier
    /// batches. May be dropped while it waits: no answer is lost.
    ///
    /// # Errors
    /// After [`ClientError::Deadline`] the answer is still due, and the next call waits for it again, for
    /// as long. Any other error ends the stream, with everything in flight.
    pub async fn next(&mut self) -> Option<Result<Vec<CheckResponse>, ClientError>> {
        loop {
            let InFlight { questions, due, .. } = *self.in_flight.front()?;
            let answered = timeout_at(due, async {
                if self.has_rest_undecided {
                    return self.move_on().await.map(|()| None);
                }
                match self.answers.message().await {
                    Ok(Some(message)) => Ok(Some(message)),
                    Ok(None) => Err(self.peer.unreachable("it closed the stream")),
                    Err(status) if !is_rest_undecided(&status) => Err(self.peer.failed(&status)),
                    Err(status) if self.moves >= SETTINGS.connection.moves_max => {
                        Err(self.peer.failed(&status))
                    }
                    Err(_) => {
                        self.has_rest_undecided = true;
                        self.move_on().await.map(|()| None)
                    }
                }
            });
            let error = match answered.await {
                Err(_) => {
                    self.in_flight[0].due = Instant::now() + self.peer.deadline;
                    return Some(Err(self.peer.late()));
                }
                Ok(Ok(None)) => continue,
                Ok(Ok(Some(CheckBatchResult { results }))) if results.len() == questions => {
                    self.moves = 0;
                    self.in_flight.pop_front();
                    return Some(Ok(results));
                }
                Ok(Ok(Some(CheckBatchResult { results }))) => {
                    let answers = results.len();
                    self.peer.unreachable(format!("it gave {answers} answers to {questions} questions"))
                }
                Ok(Err(error)) => error,
            };
            self.is_ended = true;
            self.in_flight.clear();
            return Some(Err(error));
        }
    }

    /// Moves to another connection, and asks the unanswered questions there: the node decided none of them.
    /// No question is lost if this future is dropped.
    async fn move_on(&mut self) -> Result<(), ClientError> {
        if self.moves > 0 {
            sleep(SETTINGS.connection.move_again).await;
        }
        let successor = self.connection.after(&self.current).await;
        let successor = successor.map_err(|fault| self.peer.failed(&Status::from_error(fault.into())))?;
        let begun = begin(&successor).await.map_err(|status| self.peer.failed(&status))?;
        (self.batches, self.answers) = begun.into_inner();
        self.current = successor;
        self.has_rest_undecided = false;
        self.moves += 1;
        for InFlight { batch, .. } in &self.in_flight {
            // The channel has room for every batch that may be in flight.
            let _ = self.batches.try_send(batch.clone());
        }
        Ok(())
    }

    /// The number of unanswered batches.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether an answer must be read before another batch can be sent.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= BATCHES_IN_FLIGHT_MAX
    }
}

/// Whether a node has ended a stream of its own accord, after the answers to all that it decided.
fn is_rest_undecided(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.metadata().contains_key(REST_UNDECIDED)
}

/// Begins a stream that always has room for every batch that may be in flight.
async fn begin(
    current: &Current,
) -> Result<Response<(mpsc::Sender<Bytes>, Streaming<CheckBatchResult>)>, Status> {
    const PATH: PathAndQuery = PathAndQuery::from_static("/acequia.v1.Limiter/CheckStream");
    let (sender, receiver) = mpsc::channel(BATCHES_IN_FLIGHT_MAX);
    let mut client = Grpc::new(current.channel());
    client.ready().await.map_err(|fault| Status::from_error(Box::new(fault)))?;
    let answers = client.streaming(Request::new(ReceiverStream::new(receiver)), PATH, Encoded).await?;
    Ok(answers.map(|answers| (sender, answers)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Options,
        fake::{Mode, Node},
    };

    const DEADLINE: Options = Options { deadline: Duration::from_secs(5) };

    fn question() -> [Question; 2] {
        [Question::new("shop", [("key", "k1")]), Question::new("shop", [("key", "k2")])]
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_a_node_ends_is_reopened_and_sends_nothing_twice() {
        let node = Node::of(1_000_000);
        node.set(Mode::EndsStreams(3));
        let mut stream = node.client(DEADLINE).check_stream().await.expect("a stream");
        for in_flight in [1, 2, 7, BATCHES_IN_FLIGHT_MAX] {
            for _ in 0..in_flight {
                stream.send(question()).expect("room");
            }
            for _ in 0..in_flight {
                assert_eq!(stream.next().await.expect("owed").expect("an answer").len(), 2);
            }
        }
        assert!(stream.next().await.is_none());
        let checks = node.books().checks;
        assert_eq!((checks, node.charged()), (148, 148));
        let streams = 74_usize.div_ceil(3);
        assert!((streams..streams + 2).contains(&node.connections()), "{} connections", node.connections());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_fails_if_the_node_ends_every_stream() {
        let node = Node::of(1_000_000);
        let mut stream = node.client(DEADLINE).check_stream().await.expect("a stream");
        stream.send(question()).expect("room");
        stream.next().await.expect("owed").expect("an answer");
        node.set(Mode::EndsStreams(0));
        let mut stream = node.client(DEADLINE).check_stream().await.expect("a stream");
        stream.send(question()).expect("room");
        let error = stream.next().await.expect("owed").expect_err("no answer");
        assert!(error.to_string().contains("not decided"), "{error}");
        assert!(stream.next().await.is_none());
        stream.send(question()).expect_err("it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_cannot_reconnect_fails_with_the_reason() {
        let node = Node::of(1_000_000);
        node.set(Mode::EndsStreams(1));
        let mut stream = node.client(DEADLINE).check_stream().await.expect("a stream");
        stream.send(question()).expect("room");
        stream.next().await.expect("owed").expect("an answer");
        node.refuse_connections(true);
        stream.send(question()).expect("room");
        let error = stream.next().await.expect("owed").expect_err("no connection");
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }
}
