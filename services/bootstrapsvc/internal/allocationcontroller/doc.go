// Package allocationcontroller holds an allocation ledger against the cluster for as long as a term lasts, says what it finds, and mends
// what it may.
//
// One goroutine owns everything: what was watched comes to it through a channel, and so does what people ask. It makes a pass
// as soon as something changed, when a finding may have ripened, and every twenty seconds. A pass judges, carries on a repair
// that was begun, begins one of what is safe to mend alone, writes the journal and publishes a [View], which any goroutine may
// read. Nothing of it is kept from one term to the next but what the journal has.
//
// # Invariants
//
//   - Before the caches are whole nothing is judged and nothing is written.
//   - What is used and not allocated, or allocated in the wrong name, is open only after it was read live. Caches are not in
//     step, and a Service that is gone looks like one that was robbed.
//   - One repair is applied at a time, step by step, in the order of its plan. The whole plan is in the journal before its
//     first step, and what came of a step before the next one. Who takes over in between looks first: a step that was made and
//     not recorded is found to need nothing.
//   - Right before each step, what it was planned from is read anew and live, first the address or range and then the
//     Services (the other way round where bits are set), and the write is guarded by what was read. A step that does not hold
//     any more is not made, and neither are the later steps of the same finding.
//   - A bit is cleared only at a revision that the watch has reached, and only while this term has watched it unused for long
//     enough: a bit that was cleared and set again meanwhile looks the same, and is somebody else's.
//   - A write whose outcome is not known is looked at again. A step is never given up because a dependency is away.
//   - What a person applies is what was shown to that person: the plan is made anew, and it is the same or is refused.
//   - A term that has ended writes nothing; see the packages of the ports.
package allocationcontroller
