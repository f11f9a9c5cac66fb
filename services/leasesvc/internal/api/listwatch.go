package api

const (
	defaultPageSize = 500
	maxPageSize     = 5000
)

// PageSize returns the number of items of a page: the requested number up to a limit, or a default
// for 0.
func PageSize(requested int32) int {
	if requested == 0 {
		return defaultPageSize
	}
	return min(int(requested), maxPageSize)
}
