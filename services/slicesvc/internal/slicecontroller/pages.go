package slicecontroller

// KeysAfter returns the first limit Services behind after, in order, of a
// namespace or of all for "". The zero Key is before all.
func (e *Engine) KeysAfter(namespace string, after Key, limit int) []Key {
	e.cache.mu.RLock()
	defer e.cache.mu.RUnlock()
	return e.cache.index.KeysAfter(namespace, after, limit)
}
