package quota

import "time"

// moment is a time since the start of the Quota, by the monotonic clock.
type moment time.Duration

// limit is a Limit in the units of meters.
type limit struct {
	interval time.Duration // between two calls at the full rate
	// ahead is how far a meter may be ahead of the clock before a call.
	ahead    time.Duration
	inFlight int32
}

func newLimit(of Limit, factor int) limit {
	interval := time.Duration(float64(time.Second) / (of.Rate * float64(factor)))
	return limit{
		interval: interval,
		ahead:    time.Duration(of.Burst*factor-1) * interval,
		inFlight: int32(of.InFlight * factor),
	}
}

// meter counts the calls of one identity to one method, by the generic cell rate algorithm: paid is
// the time until which all calls so far are paid at the full rate.
type meter struct {
	paid     moment
	inFlight int32
	method   uint16
}

// idle says whether a new meter would admit the same calls.
func (m *meter) idle(now moment) bool { return m.paid <= now && m.inFlight == 0 }

// admit counts a call. A call that is refused does not count, and may be repeated after wait.
func (m *meter) admit(of limit, now moment) (refusal, time.Duration) {
	if m.inFlight >= of.inFlight {
		return tooManyInFlight, inFlightPause
	}
	from := max(m.paid, now)
	if wait := time.Duration(from-now) - of.ahead; wait > 0 {
		return tooMany, wait
	}
	m.paid = from + moment(of.interval)
	m.inFlight++
	return admitted, 0
}

// account has the meters of one identity, one for each method that it called.
type account struct{ meters []meter }

// meter returns the meter of a method. The result is valid until the next call.
func (a *account) meter(method uint16) *meter {
	for i := range a.meters {
		if a.meters[i].method == method {
			return &a.meters[i]
		}
	}
	a.meters = append(a.meters, meter{method: method})
	return &a.meters[len(a.meters)-1]
}

func (a *account) idle(now moment) bool {
	for i := range a.meters {
		if !a.meters[i].idle(now) {
			return false
		}
	}
	return true
}

// population has the accounts of the identities of one kind, at most max.
type population[K comparable] struct {
	limits   []limit // by method
	max      int
	accounts map[K]*account
	// order has the keys of accounts. The search for one to forget goes on at next.
	order []K
	next  int
	// shared counts for all identities that have no account.
	shared account
}

func newPopulation[K comparable](limits []limit, size int) *population[K] {
	return &population[K]{limits: limits, max: size, accounts: map[K]*account{}}
}

// looks is how many accounts a new identity looks at for one to forget.
const looks = 16

// account returns the account of an identity. A new identity takes the place of an idle one, so the
// number of accounts follows that of active identities.
func (p *population[K]) account(key K, now moment) *account {
	if known := p.accounts[key]; known != nil {
		return known
	}
	for range min(looks, len(p.order)) {
		place := p.next
		p.next = (p.next + 1) % len(p.order)
		if found := p.accounts[p.order[place]]; found.idle(now) {
			delete(p.accounts, p.order[place])
			found.meters = found.meters[:0]
			p.accounts[key], p.order[place] = found, key
			return found
		}
	}
	if len(p.order) >= p.max {
		return &p.shared
	}
	made := &account{}
	p.accounts[key] = made
	p.order = append(p.order, key)
	return made
}
