module github.com/trivet-dev/trivet/tools/picture

go 1.26.0
