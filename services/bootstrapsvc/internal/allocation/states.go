package allocation

import "math"

// StoreState is one store as the ledger knows it.
type StoreState struct {
	Store Store
	// Present tells whether the cluster has it.
	Present bool
	// Ranges are its ranges as stored, ordered.
	Ranges []string
	// Allocated and Capacity count; the latter is the largest int64 when there are more.
	Allocated, Capacity int64
	// Services is how many are known.
	Services int64
	// Problem says why it could not be judged; empty when it could.
	Problem string
}

// StoreStates returns one for each store, in their order.
func (l *Index) StoreStates() []StoreState {
	var states []StoreState
	for _, store := range Stores() {
		states = append(states, l.cache.state(store))
	}
	return states
}

func (w *cache) state(store Store) StoreState {
	state := StoreState{Store: store, Services: int64(len(w.services))}
	grid := w.bitmaps[store]
	switch {
	case !w.has(store):
		return StoreState{Store: store}
	case store == IPAddresses:
		w.addAddressCounts(&state)
	case grid == nil:
		state.Problem = "it has not been read yet"
	default:
		if grid.fault.absent {
			return StoreState{Store: store}
		}
		state.Present = !grid.Missing && grid.Unverified == ""
		state.Problem = grid.fault.message
		state.Allocated, state.Capacity = int64(grid.allocated), int64(grid.bits.size)
		if grid.Range != "" {
			state.Ranges = []string{clip(grid.Range)}
		}
	}
	return state
}

func (w *cache) addAddressCounts(state *StoreState) {
	state.Present = true
	for _, spot := range w.addresses {
		if spot.object != nil {
			state.Allocated++
		}
	}
	for _, r := range w.prefixes {
		state.Ranges = append(state.Ranges, r.prefix.String())
		if room := capacityOf(r.prefix); room > math.MaxInt64-state.Capacity {
			state.Capacity = math.MaxInt64
		} else {
			state.Capacity += room
		}
	}
	if len(w.prefixes) == 0 {
		state.Problem = "no servicecidr is known"
	}
}
