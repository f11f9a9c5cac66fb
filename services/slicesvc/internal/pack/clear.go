package pack

// SelectorGone says that the Service gets no slices any more, and those it had are not wanted.
const SelectorGone Reason = "SELECTOR_GONE"

// Clear plans to delete the slices that a Service has from the time when it got
// them: those that it owns. It is for Services that lost their selector or became
// ExternalName, where upstream leaves the slices behind.
func Clear(in Input) Plan {
	var all drafts
	for _, slice := range sorted(in.Slices) {
		if owned(slice, in.Service) {
			all.drop(slice, SelectorGone)
		}
	}
	return all.plan(in, newNaming(in))
}
