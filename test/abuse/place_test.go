package abuse

// place says where and with which priority a child process runs.
type place string

const (
	anywhere place = ""
	// leastImportant has the lowest priority: the attacker of the short form shares its processors.
	leastImportant place = "least important"
	// measuredProcessors is one half of the processors, for the server and the agents.
	measuredProcessors place = "measured"
	// attackersProcessors is the other half, because a real attacker has a machine of its own.
	attackersProcessors place = "attacker"
)

// places returns where the measured processes and the attacker run.
func places() (measured, attacker place) {
	if *long {
		return measuredProcessors, attackersProcessors
	}
	return anywhere, leastImportant
}
