// Package damage tests that bootstrapsvc finds and repairs damaged allocations of addresses and
// ports, and that its repairs never cause damage. While kube-apiserver allocates at full speed, the
// tests inject damage of every kind, through the API and directly into etcd. At the end
//
//   - every damage was found, and repaired at once if that is safe,
//   - no other finding was ever open, unless the recorded history of etcd shows that it was true,
//   - nothing is allocated and unused without a known cause,
//   - no rule of package oracle was violated, in any change that etcd recorded,
//   - kube-apiserver's own allocator agrees: it refuses subjects in use and grants freed ones.
//
// Tests:
//
//   - TestDamage: every kind of damage (kinds_test.go) under load.
//   - TestInterruption: a replica is interrupted before or after each write of a repair, and
//     another replica completes the repair.
//   - TestConcurrency: two installations, concurrent calls, and an outdated plan.
//   - TestForeign: objects of other controllers, unreadable ranges, stale bitmaps.
//   - TestObserver: the observer and the oracle find no violation without faults, and find an
//     injected one.
//
// Commands:
//
//	go test ./test/faults/damage      every kind of damage once, under the load of 1,000 Services: two minutes
//	make damage                       with leaks, which have a grace period of a minute, and every interruption
//
// kube-apiserver's own repairers run concurrently, because they cannot be disabled. A damage that
// they repair first shows as a finding that ends without a repair.
package damage
