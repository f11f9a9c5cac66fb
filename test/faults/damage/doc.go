// Package damage proves by experiment that bootstrapsvc finds and mends what is wrong with the addresses and ports of
// Services, and that it never does harm: while kube-apiserver allocates at full speed, damage of every kind is done to what
// it keeps, through the API and by writing into its etcd, and in the end
//
//   - every damage was found, and what may be mended without asking was mended,
//   - nothing else was ever called damage,
//   - nothing that a Service uses was freed, and nothing was taken into use that was not allocated: package custody judges
//     that from every change that etcd saw,
//   - kube-apiserver's own allocator agrees: it refuses what is used, and gives what was freed.
//
// Repairs are also cut off at every write that they make, before it and after it, and taken up by another replica.
//
//	go test ./test/faults/damage                        all kinds once, beside 1,000 Services: two minutes
//	make damage                                         with leaks, which take a minute to be sure of, and every cut
//
// kube-apiserver's own repairers run beside all of this, because they cannot be turned off: what they mend first shows as a
// finding that went away by itself. Each test says what it asks of whom.
package damage
