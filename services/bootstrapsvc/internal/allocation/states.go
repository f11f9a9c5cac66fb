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

// States returns one for each store, in their order.
func (l *Ledger) States() []StoreState {
	var states []StoreState
	for _, store := range Stores() {
		states = append(states, l.world.state(store))
	}
	return states
}

func (w *world) state(store Store) StoreState {
	state := StoreState{Store: store, Services: int64(len(w.services))}
	grid := w.grids[store]
	switch {
	case !w.has(store):
		return StoreState{Store: store}
	case store == IPAddresses:
		w.fill(&state)
	case grid == nil:
		state.Problem = "it has not been read yet"
	default:
		if grid.fault.absent {
			return StoreState{Store: store}
		}
		state.Present = !grid.Missing && grid.Doubt == ""
		state.Problem = grid.fault.message
		state.Allocated, state.Capacity = int64(grid.set), int64(grid.span.size)
		if grid.Range != "" {
			state.Ranges = []string{clip(grid.Range)}
		}
	}
	return state
}

func (w *world) fill(state *StoreState) {
	state.Present = true
	for _, spot := range w.spots {
		if spot.object != nil {
			state.Allocated++
		}
	}
	for _, r := range w.rooms {
		state.Ranges = append(state.Ranges, r.prefix.String())
		if room := roomOf(r.prefix); room > math.MaxInt64-state.Capacity {
			state.Capacity = math.MaxInt64
		} else {
			state.Capacity += room
		}
	}
	if len(w.rooms) == 0 {
		state.Problem = "no servicecidr is known"
	}
}
