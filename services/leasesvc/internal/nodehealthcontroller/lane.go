package nodehealthcontroller

// depth is how many jobs a lane may ever hold for each worker.
const depth = 32

// lane leads to the workers. What is in it was decided some time ago, so it holds no more than twice what they got through
// between the last two passes, and no less than two jobs for each of them. It belongs to the goroutine in run; workers only take
// from jobs.
type lane struct {
	jobs  chan job
	least int
	// underway is how many jobs were handed out and have not come back, done how many came back for this pass.
	underway, done int
}

func newLane(workers int) lane {
	return lane{jobs: make(chan job, depth*workers), least: 2 * workers}
}

// room is how many more jobs may be handed out.
func (l *lane) room() int {
	return max(0, min(max(l.least, 2*l.done), cap(l.jobs))-l.underway)
}

// hand hands out a job; there is room for it.
func (l *lane) hand(j job) {
	l.underway++
	l.jobs <- j
}

// take notes that a job came back.
func (l *lane) take() {
	l.underway--
	l.done++
}

// next waits for a job, of the second kind only while there is none of the first; it returns false when there will be none.
func next(first, second <-chan job) (j job, ok bool) {
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
