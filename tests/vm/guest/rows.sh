# shellcheck shell=sh
# Rows for two tables of a database, one of InnoDB and one of Aria; a row is said when the server has acknowledged both.
make_tables() {
	mariadb -e "create database kept"
	for engine in InnoDB "Aria transactional=1"; do
		mariadb -e "create table kept.${engine%% *} (n int primary key, time varchar(9), init varchar(16)) engine=$engine"
	done
	n=0
}

add() {
	n=$((n + 1))
	init=$(cat /proc/1/comm)
	row="($n, '$1', '$init')"
	mariadb -e "insert into kept.InnoDB values $row; insert into kept.Aria values $row" && echo "$n $1 $init"
}

# Of each table its name, whether it is whole, and its rows.
show_tables() {
	until mariadb -e "select 1" >/dev/null 2>&1; do sleep 1; done
	for table in InnoDB Aria; do
		echo "table $table"
		mariadb -N -e "check table kept.$table" | cut -f 4
		mariadb -N -e "select n, time, init from kept.$table order by n"
	done
}
