// Package herald tells of findings and repairs where people and alerts look for them: in Events and metrics, under the names
// that kube-apiserver's own repairers give them, and in Trivet's metrics beside them.
//
// An Event is sent once for as long as its finding stands, not at every pass. Upstream's counters count a finding once, when it
// is sure; a leak that is still ripening is none. One thing upstream tells is not told: there is no Event that a range of ports is
// full, because the object that it would be about could not be created.
//
// A [Herald] is safe for concurrent use and its methods never block; Events that cannot be sent are lost.
package herald
