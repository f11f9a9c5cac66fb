package pack

// Endpoints returns the number of endpoints in the slices of a Placement.
func Endpoints(p *Placement) int {
	sum := 0
	for _, slice := range p.slices {
		sum += len(slice.object.Endpoints)
	}
	return sum
}
