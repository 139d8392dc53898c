package keeper

// SetMaxLog changes the bound of logs for the programs that are started next, until restore is called.
func SetMaxLog(n int64) (restore func()) {
	before := maxLog
	maxLog = n
	return func() { maxLog = before }
}

// FolderOf is how a line of mountinfo is read.
var FolderOf = folderOf
