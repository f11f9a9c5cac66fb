package nodehealthcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// conflictBackoff is how long a Node waits after a write conflict: about as long as the watch
	// needs to deliver the other write.
	conflictBackoff = Tick
	// checkRetry is the time from a failed self-check to the next one.
	checkRetry = time.Second
	// dryRunRetry is the time between two refusals of the same write in a dry run.
	dryRunRetry = 5 * time.Second
)

// ErrDryRun is returned by the Writer of a dry run. The write is planned again later, and counts as
// no failure.
var ErrDryRun = errors.New("this loop is in dry run and writes nothing")

var (
	// errTermOver says that a write was not made because a term that it needs has ended.
	errTermOver = errors.New("the term has ended")
	// errHeard says that a Node gave a sign of life before it was marked Unknown.
	errHeard = errors.New("its session is alive again")
	// errNoLeaseWrite says that no Lease can be written, so that a kubelet may be unable to renew
	// its own.
	errNoLeaseWrite = errors.New("kube-apiserver takes no write of a Lease")
	// errRecovered says that a Node is ready again, although the cache says otherwise.
	errRecovered = errors.New("its node is ready again")
)

// attempt keeps an object from being written while a write is running, and for a while after a
// failed one.
type attempt struct {
	busy     bool
	until    monotonic.Instant
	failures int
}

// job is one write or self-check. Exactly one of step, pod and check is set.
type job struct {
	step  *nodehealth.Step
	pod   *corev1.Pod
	check *nodehealth.SelfCheck
	// begun is when the self-check was started.
	begun monotonic.Instant
	// terms are those that the write needs. A self-check that only reads needs none.
	terms []*sessioncontroller.HeldShard
	// timeout bounds the job.
	timeout time.Duration
	// verify says that the Node of the Pod is read past the cache first.
	verify bool
	span   jobSpan
}

// result is the end of a job.
type result struct {
	job
	node *corev1.Node
	// newer are Leases that the cache does not have yet.
	newer []nodehealth.LiveLease
	err   error
	took  time.Duration
}

// startStep gives a step to the workers. The queue must have a free place.
func (r *run) startStep(step nodehealth.Step) {
	name := step.Node.Name
	r.nodeBackoffs[name] = attempt{busy: true, failures: r.nodeBackoffs[name].failures}
	if index, known := r.find(name); known {
		r.nodes[index].Busy = true
	}
	r.nodeJobs.add(job{step: &step, terms: r.termsOf(&step), timeout: r.timeoutAfter(r.nodeBackoffs[name].failures), span: r.spanOfStep(&step)})
}

// timeoutAfter bounds the next write of an object.
func (r *run) timeoutAfter(failures int) time.Duration {
	return backoff.Exponential{Min: r.checkTimeout, Max: maxTimeout}.After(failures + 1)
}

func (r *run) termsOf(step *nodehealth.Step) []*sessioncontroller.HeldShard {
	var terms []*sessioncontroller.HeldShard
	if step.NeedsShard {
		terms = append(terms, r.terms[step.Shard])
	}
	if step.NeedsZones && (!step.NeedsShard || step.Shard != ZoneShard) {
		terms = append(terms, r.terms[ZoneShard])
	}
	return terms
}

// startCheck starts a self-check unless one is running. It writes: reads alone do not show that
// kubelets can renew their Leases. A replica without shards marks no Node and writes nothing.
func (r *run) startCheck(check *nodehealth.SelfCheck) {
	if check == nil || r.checking || r.now.Instant < r.checkAt {
		return
	}
	r.checking, r.checkBegun = true, r.now.Instant
	j := job{check: check, begun: r.now.Instant, timeout: r.checkTimeout}
	if lowest := slices.IndexFunc(r.terms, func(held *sessioncontroller.HeldShard) bool { return held != nil }); lowest >= 0 {
		j.terms = []*sessioncontroller.HeldShard{r.terms[lowest]}
	}
	r.checkJobs <- j
}

// check reads Leases past the cache. With a term it writes one first.
func (r *run) check(ctx context.Context, j *job) (newer []nodehealth.LiveLease, err error) {
	if len(j.terms) > 0 {
		if err := r.Writer.RenewCheckLease(ctx, j.terms[0].ID()); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoLeaseWrite, err)
		}
	}
	return r.Writer.NewerLeases(ctx, j.check.Samples)
}

// work does jobs of first before those of second, which may be nil, until first is closed.
func (r *run) work(ctx context.Context, first, second <-chan job) {
	for {
		j, ok := nextJob(first, second)
		if !ok {
			return
		}
		begin := time.Now()
		res := r.do(ctx, j)
		res.job, res.took = j, time.Since(begin)
		r.results <- res // has a place for each job
	}
}

func (r *run) do(ctx context.Context, j job) result {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	var res result
	span := r.startSpan(&j)
	res.err = underTerms(ctx, j.terms, func(ctx context.Context) (err error) {
		ctx = span.In(ctx)
		switch {
		case j.check != nil:
			res.newer, err = r.check(ctx, &j)
		case j.pod != nil:
			err = r.markPod(ctx, &j)
		case j.step.Kind == nodehealth.MarkUnknown:
			res.node, res.newer, err = r.markUnknown(ctx, &j)
		default:
			res.node, err = r.Writer.Write(ctx, *j.step)
		}
		return err
	})
	endSpan(span, &res)
	return res
}

// markUnknown reads the Lease again before the write, because the cache may be behind. It also
// looks at the session, because a node that beats may not renew its Lease for long.
func (r *run) markUnknown(ctx context.Context, j *job) (node *corev1.Node, newer []nodehealth.LiveLease, err error) {
	step := j.step
	newer, err = r.Writer.NewerLeases(ctx, []nodehealth.Sample{step.Lease})
	if err != nil || len(newer) > 0 {
		return nil, newer, err
	}
	s := r.Sessions.Session(step.Node.Name)
	speaks := s.State == session.Alive || s.State == session.Suspect
	if speaks != step.CutOff || speaks && !step.StillCutOff(s.Agent, !s.CutOff.IsZero()) {
		return nil, nil, errHeard
	}
	node, err = r.Writer.Write(ctx, *step)
	return node, nil, err
}

// markPod marks a Pod. While marks are suspended the cache may be behind, so the Node is read
// first.
func (r *run) markPod(ctx context.Context, j *job) error {
	if j.verify {
		node, err := r.Writer.LiveNode(ctx, j.pod.Spec.NodeName)
		if err != nil {
			return err
		}
		if node == nil || !nodehealth.ReadyOnUnreadyNode(node, j.pod) {
			return errRecovered
		}
	}
	return r.Writer.MarkPodNotReady(ctx, j.pod, metav1.Now())
}

// underTerms calls write with a context that carries the first term and ends with ctx or any of the
// terms. The terms are not given up before write returns. Without terms write gets ctx.
func underTerms(ctx context.Context, terms []*sessioncontroller.HeldShard, write func(context.Context) error) error {
	bounds := []context.Context{ctx}
	for _, term := range terms {
		bound, end, ok := term.BeginWrite()
		if !ok {
			return errTermOver
		}
		defer end()
		bounds = append(bounds, bound)
	}
	if len(terms) == 0 {
		return write(ctx)
	}
	held, cancel := context.WithCancel(bounds[1])
	defer cancel()
	for _, bound := range bounds {
		defer context.AfterFunc(bound, cancel)()
	}
	err := write(held)
	switch {
	case err == nil || held.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return fmt.Errorf("%w: %w", errTermOver, err)
}

// collectResults takes in the jobs that have ended since the last pass.
func (r *run) collectResults() {
	r.nodeJobs.done, r.podJobs.done = 0, 0
	for {
		select {
		case res := <-r.results:
			r.take(res)
		default:
			return
		}
	}
}

func (r *run) take(res result) {
	switch {
	case res.check != nil:
		r.checked(res)
	case res.pod != nil:
		r.podJobs.end()
		r.podMarked(res)
	default:
		r.nodeJobs.end()
		r.written(res)
	}
}

func (r *run) checked(res result) {
	r.checking, r.denied = false, nil
	if errors.Is(res.err, errTermOver) {
		return // the next one needs no term, or has another one
	}
	if res.err == nil {
		r.checkTimeout = min(max(minTimeout, 2*res.took), maxTimeout)
		r.state = r.state.CheckPassed(res.begun, r.now.Instant)
		r.observeLive(res.newer)
		return
	}
	r.checkAt = r.now.Instant.Add(checkRetry)
	failure := checkFailure(res.err)
	switch {
	case failure.Denied:
		r.denied = fmt.Errorf("self-check of node health: %w", res.err)
	case errors.Is(res.err, context.DeadlineExceeded):
		r.checkTimeout = backoff.Exponential{Min: minTimeout, Max: maxTimeout}.Next(r.checkTimeout)
	}
	r.state = r.state.CheckFailed(r.now.Instant, failure)
}

// checkFailure says why a self-check failed, without what differs between two equal failures.
func checkFailure(err error) nodehealth.CheckFailure {
	var status apierrors.APIStatus
	request := "get leases.coordination.k8s.io"
	if errors.Is(err, errNoLeaseWrite) {
		request = "update leases.coordination.k8s.io"
	}
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		errors.As(err, &status)
		message := status.Status().Message
		_, reason, found := strings.Cut(message, " is forbidden: ") // without the name of the Lease
		if !found {
			reason = message
		}
		return nodehealth.CheckFailure{Denied: true, Detail: request + ": " + reason}
	case errors.As(err, &status):
		return nodehealth.CheckFailure{Detail: "it answers " + string(status.Status().Reason) + " to " + request}
	case errors.Is(err, context.DeadlineExceeded):
		return nodehealth.CheckFailure{Detail: "no answer in time"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return nodehealth.CheckFailure{Detail: "connection refused"}
	}
	return nodehealth.CheckFailure{Detail: "a request failed"}
}

func (r *run) written(res result) {
	name := res.step.Node.Name
	r.Metrics.written(res)
	r.observeLive(res.newer)
	r.recordStep(&res, r.nodeBackoffs[name].failures > 0)
	r.nodeBackoffs[name] = r.nextBackoff(r.nodeBackoffs[name], res.err)
	if r.nodeBackoffs[name].until <= r.now.Instant {
		r.release(name)
	}
	r.noteFailure(res.err)
	if res.node == nil {
		return
	}
	r.Logger.Debug("wrote node", "node", name, "step", res.step.Kind.String(), "reason", res.step.Reason)
	if _, known := r.find(name); known && nodehealth.NewerNode(res.node, r.answers[name]) {
		r.answers[name] = res.node
	}
	r.observe(name)
}

func (r *run) nextBackoff(b attempt, err error) attempt {
	switch {
	case err == nil:
		return attempt{until: r.now.Instant}
	case errors.Is(err, errRecovered):
		return attempt{until: r.now.Instant.Add(checkRetry), failures: b.failures}
	case errors.Is(err, ErrDryRun):
		return attempt{until: r.now.Instant.Add(dryRunRetry)}
	case overtaken(err):
		return attempt{until: r.now.Instant.Add(conflictBackoff), failures: b.failures}
	}
	return attempt{until: r.now.Instant.Add(nodestore.RetryDelay(err, b.failures)), failures: b.failures + 1}
}

// noteFailure keeps the error of the last write. A write that was overtaken is no failure, nor is a
// deleted object.
func (r *run) noteFailure(err error) {
	if err == nil || !overtaken(err) && !apierrors.IsNotFound(err) {
		r.failed = err
	}
}

// overtaken returns whether a write failed because the object or the term changed meanwhile.
func overtaken(err error) bool {
	return apierrors.IsConflict(err) || errors.Is(err, errTermOver) || errors.Is(err, errHeard) || errors.Is(err, errRecovered) ||
		errors.Is(err, ErrDryRun)
}

// jobsPerWorker is how many jobs a queue may hold for each worker.
const jobsPerWorker = 32

// jobQueue leads to the workers. Its jobs were decided some time ago, so it holds at most twice
// what ended between the last two passes, and at least two jobs for each worker. Only jobs is
// shared with the workers.
type jobQueue struct {
	jobs chan job
	min  int
	// running is how many jobs have not ended, done how many ended before this pass.
	running, done int
}

func newJobQueue(workers int) jobQueue {
	return jobQueue{jobs: make(chan job, jobsPerWorker*workers), min: 2 * workers}
}

// free returns how many jobs may be added.
func (q *jobQueue) free() int {
	return max(0, min(max(q.min, 2*q.done), cap(q.jobs))-q.running)
}

// add adds a job. There must be a free place.
func (q *jobQueue) add(j job) {
	q.running++
	q.jobs <- j
}

func (q *jobQueue) end() {
	q.running--
	q.done++
}

// nextJob waits for a job, of second only while first has none. It returns false if first is
// closed.
func nextJob(first, second <-chan job) (j job, ok bool) {
	select {
	case j, ok = <-first:
		return j, ok
	default:
	}
	select {
	case j, ok = <-first:
	case j, ok = <-second:
	}
	return j, ok
}
