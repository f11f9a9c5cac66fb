package index

// MaxServicesPerPair returns the largest number of Services of a namespace that are filed under one
// label pair.
func MaxServicesPerPair(x *Index, namespace string) int {
	most := 0
	for _, services := range x.namespaces[namespace].anchors {
		most = max(most, len(services))
	}
	return most
}
